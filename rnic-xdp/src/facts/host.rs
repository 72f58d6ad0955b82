//! The host: kernel, rights, memory.

use std::collections::BTreeSet;
use std::fs;

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::utsname::uname;

use super::associations::associations;
use super::fact::Fact;
use crate::device::netlink::{Groups, Policies, PolicySocket, firewall_tables};
use crate::device::process::{CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN, effective_capabilities, has};

pub(super) fn facts() -> Vec<Fact> {
    let capabilities = effective_capabilities();
    vec![
        kernel(),
        jit(),
        rights(capabilities),
        locked_memory(capabilities),
        huge_pages(),
        cpus(),
        ipsec(),
        esp(),
        firewall(),
    ]
}

/// The rings of an AF_XDP socket can be mapped when it is bound.
const NEEDED: (u32, u32) = (6, 4);

fn kernel() -> Fact {
    let name = "kernel";
    let release = match uname() {
        Ok(found) => found.release().to_string_lossy().into_owned(),
        Err(error) => return Fact::warn(name, format!("unknown: {error}"), "Linux 6.4 is needed"),
    };
    match version(&release) {
        Some(found) if found < NEEDED => Fact::fail(
            name,
            release,
            "Linux 6.4 or later is needed, to map the rings of bound AF_XDP sockets",
        ),
        _ => Fact::ok(name, release),
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(['.', '-']).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn jit() -> Fact {
    let name = "BPF JIT";
    match read_number("/proc/sys/net/core/bpf_jit_enable") {
        Some(0) => Fact::warn(
            name,
            "off: the steering program is interpreted",
            "sysctl net.core.bpf_jit_enable=1",
        ),
        Some(_) => Fact::ok(name, "on"),
        None => Fact::ok(name, "not stated by this kernel"),
    }
}

const CAP_NET_ADMIN: u32 = 12;
const CAP_NET_RAW: u32 = 13;
const CAP_IPC_LOCK: u32 = 14;

fn rights(capabilities: u64) -> Fact {
    let name = "rights";
    let needed = [
        (CAP_NET_ADMIN, "CAP_NET_ADMIN"),
        (CAP_NET_RAW, "CAP_NET_RAW"),
        (CAP_BPF, "CAP_BPF"),
        (CAP_PERFMON, "CAP_PERFMON"),
        (CAP_SYS_ADMIN, "CAP_SYS_ADMIN"),
    ];
    // The last one stands for those that were made of it.
    let comes_with =
        |bit| [CAP_BPF, CAP_PERFMON].contains(&bit) && has(capabilities, CAP_SYS_ADMIN);
    let missing = needed
        .into_iter()
        .filter(|(bit, _)| !has(capabilities, *bit) && !comes_with(*bit));
    let missing: Vec<_> = missing.map(|(_, name)| name).collect();
    if missing.is_empty() {
        return Fact::ok(
            name,
            "sufficient to attach XDP programs and open AF_XDP sockets",
        );
    }
    let found = format!("without {}", missing.join(", "));
    // The last one only finds the maps of other processes: counters.
    if missing == ["CAP_SYS_ADMIN"] {
        return Fact::warn(
            name,
            found,
            "the steering counters of other processes cannot be read; run as root",
        );
    }
    Fact::fail(
        name,
        found,
        "run as root, or give the program these capabilities with setcap",
    )
}

/// What a port of one queue needs at least, with a margin.
const LOCKED_NEED: u64 = 64 << 20;

fn locked_memory(capabilities: u64) -> Fact {
    let name = "locked memory";
    if has(capabilities, CAP_IPC_LOCK) {
        return Fact::ok(name, "unlimited (CAP_IPC_LOCK)");
    }
    let remedy = "grant CAP_IPC_LOCK, or raise the limit: ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit";
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((soft, _)) if soft >= LOCKED_NEED => Fact::ok(name, octets(soft)),
        Ok((soft, _)) => Fact::fail(
            name,
            format!("{} and no CAP_IPC_LOCK", octets(soft)),
            remedy,
        ),
        Err(error) => Fact::warn(name, format!("unknown: {error}"), remedy),
    }
}

fn octets(count: u64) -> String {
    match count {
        u64::MAX => "unlimited".to_string(),
        count if count >= 1 << 20 => format!("{} MiB", count >> 20),
        count => format!("{} KiB", count >> 10),
    }
}

/// Hugepages of 2 MiB, also where those of `vm.nr_hugepages` have another size.
const TWO_MIB: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

fn huge_pages() -> Fact {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |key: &str| {
        let value = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
        value.split_whitespace().next()?.parse::<u64>().ok()
    };
    let in_sysfs = |file: &str| {
        let count = fs::read_to_string(format!("{TWO_MIB}/{file}")).ok()?;
        count.trim().parse().ok()
    };
    let usual = field("Hugepagesize:").unwrap_or(2 << 10) << 10;
    match usual == 2 << 20 {
        true => huge_pages_of(
            usual,
            field("HugePages_Total:").zip(field("HugePages_Free:")),
        ),
        false => huge_pages_of(
            usual,
            in_sysfs("nr_hugepages").zip(in_sysfs("free_hugepages")),
        ),
    }
}

/// Judges the number of hugepages of 2 MiB, all and free, where those of `vm.nr_hugepages` have so
/// many octets: on aarch64 perhaps 32 or 512 MiB. Frames lie on none then.
fn huge_pages_of(usual: u64, counts: Option<(u64, u64)>) -> Fact {
    let name = "hugepages";
    let (directory, without, frames) = match usual == 2 << 20 {
        true => ("/proc/sys/vm", "regions and frames lie", ""),
        false => (
            TWO_MIB,
            "regions lie",
            ", for regions; frames lie on ordinary pages on this kernel",
        ),
    };
    let remedy = format!(
        "echo 512 > {directory}/nr_hugepages (1 GiB); without them {without} on ordinary pages"
    );
    let Some((total, free)) = counts else {
        return Fact::warn(name, "this kernel has none", remedy);
    };
    let found = format!("{free} of {total} free, 2 MiB each{frames}");
    if free == 0 {
        return Fact::warn(name, found, remedy);
    }
    Fact::ok(name, found)
}

fn cpus() -> Fact {
    let name = "CPUs";
    let count = std::thread::available_parallelism().map_or(1, |count| count.get());
    if count == 1 {
        return Fact::warn(
            name,
            "1",
            "drive the device inline: a worker thread would compete with its application",
        );
    }
    Fact::ok(name, count.to_string())
}

/// The most policies that are listed.
const NAMED: usize = 4;

/// Reports the IPsec policies, which do not apply to what XDP takes.
fn ipsec() -> Fact {
    let name = "IPsec";
    let policies = PolicySocket::open(Groups::NONE).and_then(|socket| match socket {
        Some(mut socket) => socket.read(0),
        None => Ok(Policies::default()),
    });
    let policies = match policies {
        Ok(policies) => policies,
        Err(error) => {
            return Fact::warn(name, error.to_string(), "run as root to see the policies");
        }
    };
    let mut demands: Vec<_> = policies
        .demands()
        .map(|policy| format!("\"{policy}\""))
        .collect();
    if demands.is_empty() {
        return Fact::ok(name, "no policy demands protection");
    }
    let more = demands.len().saturating_sub(NAMED);
    demands.truncate(NAMED);
    if more > 0 {
        demands.push(format!("and {more} more"));
    }
    Fact::warn(
        name,
        format!(
            "these policies demand protection, and have no number by which they would be rnic's: {}",
            demands.join(", ")
        ),
        "connections that they select are refused; --ipsec-if-id protects them (docs/ipsec.md), --ignore-ipsec has them go \
         in the clear",
    )
}

/// Reports the associations that a process can take.
fn esp() -> Fact {
    let name = "ESP";
    let Ok(found) = associations() else {
        return Fact::ok(
            name,
            "no association is shown (none is there, or only root may see it)",
        );
    };
    let numbers: BTreeSet<_> = found
        .iter()
        .map(|association| format!("{:#x}", association.if_id))
        .collect();
    let numbers: Vec<_> = numbers.into_iter().collect();
    let unusable = found.iter().find_map(|association| {
        let why = association.usable.as_ref().err()?;
        Some(format!("SPI {:#010x}: {why}", association.id.spi))
    });
    match (numbers.as_slice(), unusable) {
        ([], _) => Fact::ok(name, "no association has a number for --ipsec-if-id"),
        (_, None) => Fact::ok(
            name,
            format!("associations for --ipsec-if-id {}", numbers.join(", ")),
        ),
        (_, Some(why)) => Fact::warn(
            name,
            format!("an association cannot be used: {why}"),
            "docs/ipsec.md has what rnic can; `rnic-ctl sa show` has all",
        ),
    }
}

/// Reports the firewall's tables, which do not apply to what XDP takes.
fn firewall() -> Fact {
    let name = "firewall";
    match firewall_tables() {
        Ok(tables) if tables.is_empty() => Fact::ok(
            name,
            "none; rules of nftables or iptables would not apply to rnic's connections",
        ),
        Ok(tables) => Fact::warn(
            name,
            format!(
                "rules do not apply to rnic's connections: {}",
                tables.join(", ")
            ),
            "--allow PREFIX limits who may connect",
        ),
        Err(_) => Fact::ok(
            name,
            "not stated by the kernel; its rules do not apply to rnic's connections",
        ),
    }
}

fn read_number(path: &str) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_any_release() {
        assert_eq!(version("6.18.44-fc-v657"), Some((6, 18)));
        assert_eq!(version("5.4"), Some((5, 4)));
        assert_eq!(version("6.1-rc3"), Some((6, 1)));
        assert_eq!(version("next"), None);
    }

    #[test]
    fn hugepages_of_2_mib_count_whatever_vm_nr_hugepages_reserves() {
        let fact = huge_pages_of(512 << 20, Some((0, 0)));
        let remedy = fact.remedy.expect("none is free");
        assert!(remedy.contains("hugepages-2048kB/nr_hugepages"), "{remedy}");
        let fact = huge_pages_of(512 << 20, Some((200, 190)));
        assert!(
            fact.found
                .starts_with("190 of 200 free, 2 MiB each, for regions")
        );
        assert_eq!(fact.remedy, None);
        let fact = huge_pages_of(2 << 20, Some((7, 7)));
        assert_eq!(
            (&*fact.found, fact.remedy),
            ("7 of 7 free, 2 MiB each", None)
        );
    }

    #[test]
    fn every_fact_but_a_good_one_has_a_remedy() {
        for fact in facts() {
            assert_eq!(
                fact.remedy.is_none(),
                fact.verdict == super::super::Verdict::Ok,
                "{fact:?}"
            );
        }
        assert_eq!(rights(u64::MAX).verdict, super::super::Verdict::Ok);
        assert_eq!(rights(0).verdict, super::super::Verdict::Fail);
        let of = |bits: &[u32]| rights(bits.iter().map(|bit| 1 << bit).sum());
        let fails = of(&[CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF]);
        assert!(fails.found.contains("CAP_PERFMON"), "{fails:?}");
        assert_eq!(fails.verdict, super::super::Verdict::Fail);
        let warns = of(&[CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF, CAP_PERFMON]);
        assert_eq!(warns.verdict, super::super::Verdict::Warn);
        let all = of(&[CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN]);
        assert_eq!(all.verdict, super::super::Verdict::Ok);
    }
}
