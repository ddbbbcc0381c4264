"""Which run a command works on where none is named."""

from clearhead.cli.output import notice


def implied_run(which: str | None, *, to_resume: bool = False) -> str:
    """The run that was named; else the newest that can be used, which standard error is told."""
    if which is not None:
        return which
    from clearhead import workflows

    run = workflows.newest_run(to_resume=to_resume)
    newest = run.folder == workflows.all_runs()[0].folder
    restriction = "" if newest else " that was trained here" if to_resume else " that has a model"
    notice(f"using {run.folder}, the newest run{restriction}")
    return str(run.folder)
