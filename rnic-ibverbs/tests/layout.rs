//! The structures have the layout that the system's headers give them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rnic_ibverbs::abi::{LAYOUTS, Layout};

/// Members that headers of rdma-core before 66 may lack. Each is the last of its structure, or of
/// `verbs_context` the first.
const NEWER: [(&str, &str); 10] = [
    ("ibv_qp_ex", "wr_flush"),
    ("ibv_qp_ex", "wr_atomic_write"),
    ("ibv_port_attr", "active_speed_ex"),
    ("rdma_cm_event_param", "arg"),
    ("verbs_context", "free_buf"),
    ("verbs_context", "alloc_buf"),
    ("verbs_context", "dm_export_dmabuf_fd"),
    ("verbs_context", "reg_mr_ex"),
    ("verbs_context", "dealloc_dmah"),
    ("verbs_context", "alloc_dmah"),
];

/// Structures that older headers may lack.
const NEWER_STRUCTURES: [&str; 1] = ["ibv_mr_init_attr"];

const HEADERS: [&str; 5] = [
    "infiniband/verbs.h",
    "infiniband/sa.h",
    "rdma/rdma_cma.h",
    "rdma/ib_user_verbs.h",
    "rdma/ib_user_sa.h",
];

/// Members that stand for several of the header: their names there.
fn name_in_c<'a>(structure: &str, member: &'a str) -> &'a str {
    match (structure, member) {
        ("ibv_send_wr", "qp_type") => "qp_type.xrc.remote_srqn",
        ("ib_uverbs_qp_attr", "cap") => "max_send_wr",
        ("ib_uverbs_ah_attr", "dgid") => "grh.dgid",
        ("ib_uverbs_ah_attr", "flow_label") => "grh.flow_label",
        ("ib_uverbs_ah_attr", "sgid_index") => "grh.sgid_index",
        ("ib_uverbs_ah_attr", "hop_limit") => "grh.hop_limit",
        ("ib_uverbs_ah_attr", "traffic_class") => "grh.traffic_class",
        ("ib_uverbs_ah_attr", "grh_reserved") => "grh.reserved",
        ("rdma_addr", "addr") => "addr.ibaddr",
        _ => member.strip_prefix("r#").unwrap_or(member),
    }
}

fn layouts() -> impl Iterator<Item = &'static Layout> {
    LAYOUTS.iter().copied().flatten()
}

/// What the compiler makes of the headers.
struct Headers {
    text: String,
    directory: PathBuf,
}

impl Headers {
    fn read() -> Self {
        let mut text = String::new();
        for header in HEADERS {
            let path = Path::new("/usr/include").join(header);
            text += &fs::read_to_string(&path).unwrap_or_else(|why| {
                panic!(
                    "{}: {why}; install libibverbs-dev and librdmacm-dev (ci/deps)",
                    path.display()
                )
            });
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rnic-layout-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        Self { text, directory }
    }

    fn has(&self, word: &str) -> bool {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        self.text.split(|c| !is_part(c)).any(|found| found == word)
    }

    /// Compiles and runs a program that prints these expressions, and returns their values by name.
    fn values(&self, expressions: &BTreeMap<String, String>) -> BTreeMap<String, u64> {
        let mut source = String::from("#include <stdio.h>\n#include <stddef.h>\n");
        for header in HEADERS {
            source += &format!("#include <{header}>\n");
        }
        source += "int main(void) {\n";
        for (name, expression) in expressions {
            source += &format!("  printf(\"{name} %zu\\n\", (size_t)({expression}));\n");
        }
        source += "}\n";
        let (code, program) = (self.directory.join("a.c"), self.directory.join("a"));
        fs::write(&code, source).unwrap();
        let compiled = compiler().arg("-o").arg(&program).arg(&code).output();
        let compiled = compiled.expect("a C compiler");
        let errors = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{errors}");
        let printed = Command::new(&program).output().unwrap().stdout;
        let printed = String::from_utf8(printed).unwrap();
        printed
            .lines()
            .map(|line| {
                let (name, value) = line.split_once(' ').unwrap();
                (name.to_owned(), value.parse().unwrap())
            })
            .collect()
    }
}

/// Returns the compiler of the architecture that this is built for, as Debian names it, if there is
/// one: in an emulator, `cc` is another machine's.
fn compiler() -> Command {
    let own = format!("{}-linux-gnu-gcc", std::env::consts::ARCH);
    let is_there = Command::new(&own).arg("--version").output().is_ok();
    Command::new(if is_there { &own } else { "cc" })
}

impl Drop for Headers {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The members of a structure that these headers have.
fn members<'a>(
    headers: &'a Headers,
    layout: &'static Layout,
) -> impl Iterator<Item = &'static (&'static str, usize)> + 'a {
    layout.members.iter().filter(|(member, _)| {
        let newer = NEWER.contains(&(layout.name, member));
        !newer || headers.has(member)
    })
}

#[test]
fn structures_are_those_of_the_headers() {
    let headers = Headers::read();
    let mut expressions = BTreeMap::new();
    let there = |layout: &&Layout| {
        let newer = NEWER_STRUCTURES.contains(&layout.name);
        !newer || headers.has(layout.name)
    };
    for layout in layouts().filter(there) {
        let name = layout.name;
        expressions.insert(name.to_owned(), format!("sizeof(struct {name})"));
        for (member, _) in members(&headers, layout) {
            let in_c = name_in_c(name, member);
            expressions.insert(
                format!("{name}.{member}"),
                format!("offsetof(struct {name}, {in_c})"),
            );
        }
    }
    // A union there.
    expressions.insert("ibv_gid".into(), "sizeof(union ibv_gid)".into());
    expressions.insert("ibv_gid.raw".into(), "offsetof(union ibv_gid, raw)".into());
    let values = headers.values(&expressions);
    assert!(values.len() > 400, "few members are compared");
    for layout in layouts().filter(there) {
        compare(layout, members(&headers, layout), &values);
    }
}

fn compare<'a>(
    layout: &Layout,
    members: impl Iterator<Item = &'a (&'static str, usize)>,
    values: &BTreeMap<String, u64>,
) {
    let name = layout.name;
    let theirs = values[name] as usize;
    // What the headers lack lies at the end, or at the beginning of what grows upwards.
    let lacking = layout.size - theirs;
    let grows = NEWER.iter().any(|(structure, _)| *structure == name);
    assert!(
        lacking == 0 || grows,
        "{name}: {} octets here, {theirs} there",
        layout.size
    );
    let shift = if name == "verbs_context" { lacking } else { 0 };
    for (member, offset) in members {
        let there = values[&format!("{name}.{member}")] as usize;
        assert_eq!(*offset - shift, there, "{name}.{member}");
    }
}

/// The parts of unions, and numbers of the headers.
#[test]
fn parts_and_numbers_are_those_of_the_headers() {
    use rnic_ibverbs::abi::*;
    let expected = [
        ("offsetof(struct ibv_send_wr, wr.rdma.rkey)", 48),
        ("offsetof(struct ibv_send_wr, wr.atomic.rkey)", 64),
        ("offsetof(struct ibv_send_wr, bind_mw.bind_info)", 96),
        ("offsetof(struct rdma_cm_id, route.addr.dst_addr)", 32 + 128),
        ("offsetof(struct rdma_cm_event, param.ud.qp_num)", 24 + 48),
        (
            "IBV_WC_RECV_RDMA_WITH_IMM",
            u64::from(IBV_WC_RECV_RDMA_WITH_IMM),
        ),
        ("IBV_WC_GENERAL_ERR", u64::from(IBV_WC_GENERAL_ERR)),
        ("IBV_WR_SEND_WITH_INV", u64::from(IBV_WR_SEND_WITH_INV)),
        ("IBV_EVENT_GID_CHANGE", u64::from(IBV_EVENT_GID_CHANGE)),
        ("IBV_QP_RATE_LIMIT", IBV_QP_RATE_LIMIT as u64),
        ("IBV_QP_EX_WITH_SEND_WITH_INV", IBV_QP_EX_WITH_SEND_WITH_INV),
        (
            "IBV_ACCESS_OPTIONAL_RANGE",
            u64::from(IBV_ACCESS_OPTIONAL_RANGE),
        ),
        (
            "IBV_DEVICE_MEM_WINDOW_TYPE_2B",
            u64::from(IBV_DEVICE_MEM_WINDOW_TYPE_2B),
        ),
        (
            "RDMA_CM_EVENT_TIMEWAIT_EXIT",
            u64::from(RDMA_CM_EVENT_TIMEWAIT_EXIT),
        ),
    ];
    let name = |number: usize| format!("v{number}");
    let expressions = expected.iter().enumerate();
    let expressions = expressions.map(|(at, (expression, _))| (name(at), (*expression).into()));
    let values = Headers::read().values(&expressions.collect());
    for (at, (expression, value)) in expected.iter().enumerate() {
        assert_eq!(values[&name(at)], *value, "{expression}");
    }
}
