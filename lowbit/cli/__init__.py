"""The command line. `app` is the entry point; `options` has what commands share.

Every other module is the command of its name; each parses options and calls one function of `lowbit.api`.
`quantize` has `calibrate` too, `report` has `compare`, `evaluate` is `lowbit eval`, and `catalog` has
`recipes`, `models` and `data`.
"""
