"""libfabric's verbs provider: messages (MSG), and datagrams that it makes of them
(`verbs;ofi_rxm`). The transfers are checked."""

from programs import Case, table

def pingpong(name, provider, options, **how):
    line = f"fi_pingpong -c -p '{provider}' {options}"
    return Case(f"fi_pingpong, {name}", f"{line} {{server}}", line, says=(r"^64 ",), **how)

table(
    Case("fi_info, verbs", "fi_info -p verbs", says=(r"provider: verbs$",)),
    Case("fi_info, verbs;ofi_rxm", "fi_info -p 'verbs;ofi_rxm'", says=(r"provider: verbs;ofi_rxm$",)),
    pingpong("MSG", "verbs", "-e msg", port=47592, kernel=True),
    pingpong("RDM", "verbs;ofi_rxm", "-e rdm", port=47592, kernel=True),
)
