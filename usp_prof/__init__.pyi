from usp_prof._version import __version__
from usp_prof.extras.planner.functions import memory, plan
from usp_prof.functions import check, compare
from usp_prof.model.errors import UspProfError
from usp_prof.run import Run, open_run

__all__ = ["Run", "UspProfError", "__version__", "check", "compare", "memory", "open_run", "plan"]
