"""The policy of a check: rules from the defaults, a TOML file and the command line; the last one wins.

Each rule allows a change and guarantees a resolution. A verdict is *regressed* if the whole interval is beyond
`allowed`. It is *pass* only if the interval ends below `resolve`, so a change that large never passes unnoticed.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

from usp_prof.gate.facts import FactKind
from usp_prof.gate.judgment import Limit, parse_limit
from usp_prof.gate.sample import PRIORS, Machine, Prior
from usp_prof.gate.series import Series
from usp_prof.model.errors import InputError, UsageError, unknown_name
from usp_prof.model.files import ERRORS, checked, read_bytes
from usp_prof.model.finding import Level
from usp_prof.model.health import Severity

RESOLVE_FACTOR = 3.0
"""Default resolution: a pass excludes a change of three times the allowed one."""

STEP_FAMILY = "step"
"""Step time, throughput and MFU express the same thing: they share one alarm budget, half of the check's."""


class Judge(StrEnum):
    """The kind of noise that a change is compared with."""

    RUNS = "runs"
    """The spread between runs of one configuration: assumed for the machine until several baseline runs show it."""
    MEDIANS = "medians"
    """Only the steps of the given runs, by the ratio of their medians."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What is allowed for the series whose key fits `match`; `*` matches one value: `overlap_fraction[axis=*]`.

    `between` is the assumed standard deviation between runs until several baseline runs show it. It is a minimum, or
    the only assumption if the rule is `stated`.
    """

    match: str
    allowed: Limit
    resolve: Limit
    between: Limit
    family: str = ""
    stated: bool = False
    medians: bool = False
    """Judge by the ratio of medians (see `sample.py`): only the steps of the given runs count, without a prior."""
    explains: bool = False
    """Whether the figure explains a slowdown: a larger limit of the step makes this one larger in proportion."""


def fits(match: str, key: str) -> bool:
    """Return whether a rule's `match` matches a key; each `*` matches one value."""
    return pattern_of(match, "[^,]").fullmatch(key) is not None


@lru_cache(maxsize=1 << 16)
def pattern_of(match: str, letter: str) -> re.Pattern[str]:
    """Compile a pattern in which each `*` matches any number of `letter`; matching stays fast for any number of stars.

    The first match of each part between two stars is final: a later one would leave less text for the rest.
    """
    first, *later = (re.escape(part) for part in re.split(r"\*+", match))
    between = "".join(f"(?>{letter}*?{part})" for part in later[:-1])
    last = f"{letter}*{later[-1]}" if later else ""
    return re.compile(f"{first}{between}{last}")


def _explaining(match: str, allowed: str, resolve: str) -> Rule:
    return replace(_rule(match, allowed, resolve), explains=True)


def _rule(match: str, allowed: str, resolve: str = "", between: str = "", family: str = "") -> Rule:
    limit = parse_limit(allowed)
    far = parse_limit(resolve) if resolve else limit.times(RESOLVE_FACTOR)
    assumed = parse_limit(between) if between else Limit(0.001, limit.scale)
    if {far.scale, assumed.scale} != {limit.scale}:
        raise UsageError(f"rule {match!r} mixes relative and absolute limits", hint="give all with % or all without")
    if far.amount < limit.amount:
        raise UsageError(f"rule {match!r}: resolve {far} is below allowed {limit}", hint="leave `resolve` out")
    return Rule(match, limit, far, assumed, family, stated=bool(between))


DEFAULT_RULES: tuple[Rule, ...] = (
    _rule("step_time", "1%", "3%", family=STEP_FAMILY),
    _rule("mfu", "1%", "3%", family=STEP_FAMILY),
    _rule("tokens_per_second", "1%", "3%", family=STEP_FAMILY),
    _explaining("exposed_comm_fraction[axis=*]", "1pp", "4pp"),
    _explaining("bubble_fraction", "1pp", "4pp"),
    _explaining("idle_fraction[cause=*]", "1pp", "4pp"),
    _explaining("overlap_fraction[axis=*]", "3pp", "12pp"),
    _explaining("kernel_efficiency", "2%", "15%"),
    _rule("peak_memory*", "2%", "6%", between="0.5%"),
    _rule("taken_memory*", "2%", "6%", between="0.5%"),
)
"""The default policy. Fractions of the step are in points, since a small share doubles easily."""
_STEP_RULE = DEFAULT_RULES[0]


@dataclass(frozen=True, slots=True)
class Policy:
    """All settings of a check. `false_alarm` is the probability that an unchanged run is reported as regressed."""

    rules: tuple[Rule, ...] = DEFAULT_RULES
    minimum: tuple[tuple[str, float], ...] = ()
    false_alarm: float = 0.01
    findings: Level | None = Level.CRITICAL
    """New findings of this level or above regress; None disables this."""
    health: Severity = Severity.DATA_LOSS
    across: tuple[FactKind, ...] = ()
    noise: Mapping[Machine, Prior] = field(default_factory=lambda: PRIORS)
    requested: tuple[str, ...] = ()
    """Rules and bounds from the command line: if one cannot be judged, the check has no answer."""

    def rule(self, series: Series) -> Rule | None:
        """Return the first rule that matches a series, or None if the series is not gated."""
        key = series.key
        return next((rule for rule in self.rules if fits(rule.match, key)), None)

    def with_options(self, *, minimum: Mapping[str, float], max_regression: Mapping[str, str]) -> Policy:
        """Return a policy in which the options of the command line come first."""
        _check_mapping("minimum", minimum, '{"mfu": 0.38}')
        _check_mapping("max_regression", max_regression, '{"step_time": "3%"}')
        if odd := [name for name, floor in minimum.items() if not isinstance(floor, (int, float))]:
            raise UsageError(
                f"the lower bound of {odd[0]} is not a number: {minimum[odd[0]]!r}", hint="for example mfu=0.38"
            )
        if odd := [name for name, text in max_regression.items() if not isinstance(text, str)]:
            hint = f'max_regression={{"{odd[0]}": "3%"}}, or "1pp" for a share'
            raise UsageError(
                f"the limit of {odd[0]} is a text with its unit, not {max_regression[odd[0]]!r}", hint=hint
            )
        rules = tuple(_override(self.rules, name, text) for name, text in max_regression.items())
        rules += _of_family(rules, self.rules)
        floors = {**dict(self.minimum), **minimum}
        if endless := [name for name, floor in floors.items() if not math.isfinite(floor)]:
            raise UsageError(f"the lower bound of {endless[0]} is not a finite number", hint="for example mfu=0.38")
        requested = (*self.requested, *max_regression)
        rules += tuple(_in_proportion(rule, rules) for rule in self.rules)
        return replace(self, rules=rules, minimum=tuple(sorted(floors.items())), requested=requested)

    @property
    def allowed_loss(self) -> float:
        """Share of the new step that may be lost if its limit is above the default; otherwise 0."""
        step = next((rule for rule in self.rules if rule.match == _STEP_RULE.match), _STEP_RULE)
        is_raised = step.allowed.scale is _STEP_RULE.allowed.scale and step.allowed.amount > _STEP_RULE.allowed.amount
        return step.allowed.amount / (1 + step.allowed.amount) if is_raised else 0.0

    def judging(self, way: Judge) -> Policy:
        """Return a policy with this way to judge for every rule."""
        medians = way is Judge.MEDIANS
        return replace(self, rules=tuple(replace(rule, medians=medians) for rule in self.rules))


def load_policy(path: str | Path) -> Policy:
    """Read a policy file; its rules come before the defaults unless the file has `defaults = false`."""
    text = read_bytes(path, "policy", "see docs/reference/gate.md for an example")
    try:
        data = tomllib.loads(text.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(
            f"policy {path} is not TOML: {error}", hint="see docs/reference/gate.md for an example"
        ) from error
    return policy_from(data)


NO_FINDINGS = "none"
"""The word in a policy file for a gate that ignores findings."""


@dataclass(frozen=True, slots=True)
class _Written:
    """A policy file as written."""

    defaults: bool = True
    rule: tuple[dict[str, str | int | float], ...] = ()
    min: dict[str, float] = field(default_factory=dict)
    false_alarm: float = 0.01
    findings: str = Level.CRITICAL.value
    health: str = Severity.DATA_LOSS.value
    across: tuple[str, ...] = ()
    noise: dict[str, dict[str, float]] = field(default_factory=dict)
    judge: str = Judge.RUNS.value


_KEYS = tuple(_Written.__dataclass_fields__)
_NOISE_KEYS = ("share", "worth", "enough")
_RULE_KEYS = ("match", "allowed", "resolve", "between", "family")


def policy_from(data: Mapping[str, Any]) -> Policy:
    """Build a policy from plain data."""
    _check_keys("policy key", data, _KEYS)
    try:
        written = checked(_Written, data)
    except ERRORS as error:
        raise UsageError(f"this is not a policy: {error}", hint="see docs/reference/gate.md for an example") from error
    rules = []
    for entry in written.rule:
        _check_keys("key of a rule", entry, _RULE_KEYS)
        if "match" not in entry or "allowed" not in entry:
            raise UsageError("a rule needs `match` and `allowed`", hint='match = "step_time", allowed = "1%"')
        default = next((rule.family for rule in DEFAULT_RULES if rule.match == entry["match"]), "")
        rules.append(_rule(**{"family": default, **{name: str(value) for name, value in entry.items()}}))
    false_alarm = written.false_alarm
    if not 0 < false_alarm < 0.5:
        raise UsageError(f"false_alarm is {false_alarm}", hint="a chance between 0 and 0.5, 0.01 by default")
    if written.defaults:  # the default rules, adapted to those of the file
        of_file = tuple(rules)
        rules += _of_family(of_file, DEFAULT_RULES)
        rules += [_in_proportion(rule, of_file) for rule in DEFAULT_RULES]
    policy = Policy(
        rules=tuple(rules),
        minimum=tuple(sorted(written.min.items())),
        false_alarm=false_alarm,
        findings=_level(written.findings),
        health=_member(Severity, "severity of health", written.health),
        across=tuple(_member(FactKind, "kind of fact", name) for name in written.across),
        noise={**PRIORS, **dict(_prior(name, fields) for name, fields in written.noise.items())},
    )
    return policy.judging(_member(Judge, "way to judge", written.judge))


def _prior(name: str, fields: Mapping[str, float]) -> tuple[Machine, Prior]:
    """Parse the prior of one kind of machine; omitted fields keep their defaults."""
    machine: Machine = _member(Machine, "kind of machine", name)
    _check_keys("key of noise", fields, _NOISE_KEYS)
    prior = replace(PRIORS[machine], **fields)
    if prior.share < 0 or prior.worth <= 0 or prior.enough < 2:
        raise UsageError(f"noise.{name}: {prior}", hint="share >= 0, worth > 0, enough >= 2 baseline runs")
    return machine, prior


def _level(word: str) -> Level | None:
    return None if word == NO_FINDINGS else _member(Level, "level of findings", word)


_COMMA = re.compile(r",(?![^\[\]]*\])")
"""A comma outside of brackets."""


def parse_pairs(words: list[str]) -> dict[str, str]:
    """Parse `a=1,b=2` words of the command line; a comma inside brackets belongs to the name."""
    pairs = {}
    for word in words:
        for part in filter(None, _COMMA.split(word)):
            name, sign, value = part.rpartition("=")
            if not sign or not name or not value:
                raise UsageError(f"{part!r} is not NAME=VALUE", hint="for example mfu=0.38 or step_time=3%")
            pairs[name.strip()] = value.strip()
    return pairs


def _override(rules: tuple[Rule, ...], name: str, text: str) -> Rule:
    limit = parse_limit(text)
    default = next((rule for rule in rules if rule.match == name), None)
    family = default.family if default else ""
    resolve = limit.times(RESOLVE_FACTOR)
    if default is None or default.between.scale is not limit.scale:
        return Rule(name, limit, resolve, Limit(0.001, limit.scale), family)
    return Rule(name, limit, resolve, default.between, family, stated=default.stated)


def _of_family(changed: tuple[Rule, ...], defaults: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Return the rest of a named rule's family with its limit: all rules of a family judge the same slowdown."""
    matches = {rule.match for rule in changed}
    limit_of_family = {rule.family: rule for rule in reversed(changed) if rule.family}
    rules_with_changed = [(rule, limit_of_family.get(rule.family)) for rule in defaults if rule.match not in matches]
    return tuple(
        replace(rule, allowed=first.allowed, resolve=first.resolve)
        for rule, first in rules_with_changed
        if first is not None and first.allowed.scale is rule.allowed.scale
    )


def _in_proportion(rule: Rule, changed: tuple[Rule, ...]) -> Rule:
    """Return a rule that explains a slowdown, with limits in proportion to the step's if that is above its default."""
    step = next((other for other in changed if other.family == STEP_FAMILY), None)
    if not rule.explains or step is None or step.allowed.scale is not _STEP_RULE.allowed.scale:
        return rule
    default = next(other for other in DEFAULT_RULES if other.match == rule.match)
    factor = max(1.0, step.allowed.amount / _STEP_RULE.allowed.amount)
    return replace(rule, allowed=default.allowed.times(factor), resolve=default.resolve.times(factor))


def _check_mapping(name: str, values: object, example: str) -> None:
    if not isinstance(values, Mapping):
        raise UsageError(f"{name} has a value per metric, not {values!r}", hint=f"{name}={example}")
    if odd := [key for key in values if not isinstance(key, str)]:
        raise UsageError(f"{name} names metrics, not {odd[0]!r}", hint=f"{name}={example}")


def _check_keys(kind: str, data: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for name in data:
        if name not in keys:
            raise unknown_name(kind, name, keys)


def _member(kind: type[Any], word: str, name: str) -> Any:  # noqa: ANN401 - a member of `kind`
    try:
        return kind(name)
    except ValueError:
        raise unknown_name(word, str(name), [member.value for member in kind]) from None
