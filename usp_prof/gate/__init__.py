"""The regression gate: baseline, policy, judgement of each metric, verdict of the whole check. It writes nothing."""
