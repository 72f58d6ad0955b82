"""libfabric's verbs provider: messages (MSG), datagrams that it makes of them (`verbs;ofi_rxm`),
datagrams (UD), and reliable ones that it makes of those (`verbs;ofi_rxd`). The transfers are checked.
It has UD only where the device calls itself RoCE."""

from programs import Case, table

def pingpong(name, provider, options, label="", **how):
    # Where it has no userfaultfd, it writes into the C library's munmap while other threads are in it.
    line = f"{label}env FI_MR_CACHE_MONITOR=disabled fi_pingpong -c -p '{provider}' {options}"
    return Case(f"fi_pingpong, {name}", f"{line} {{server}}", line, says=(r"^64 ",), **how)

table(
    Case("fi_info, verbs", "fi_info -p verbs", says=(r"provider: verbs$",)),
    Case("fi_info, verbs;ofi_rxm", "fi_info -p 'verbs;ofi_rxm'", says=(r"provider: verbs;ofi_rxm$",)),
    pingpong("MSG", "verbs", "-e msg", port=47592, kernel=True),
    pingpong("RDM", "verbs;ofi_rxm", "-e rdm", port=47592, kernel=True),
    pingpong("DGRAM", "verbs", "-e dgram", "--as roce ", port=47592, kernel=True),
    pingpong("RDM over DGRAM", "verbs;ofi_rxd", "-e rdm", "--as roce ", port=47592, kernel=True),
)
