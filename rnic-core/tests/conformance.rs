//! The conformance register (`rnic-core/conformance/`) against the `rfc:` comments in code and
//! tests.
//!
//! `ci/conformance` prints the table that [`table`] makes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Crates whose code and tests are read.
const CRATES: [&str; 7] = [
    "rnic-core",
    "rnic-sockets",
    "rnic-verbs",
    "rnic-ibverbs",
    "rnic-manager",
    "rnic-xdp",
    "rnicd",
];

/// The directory of the programs in the kernel, which are code as well.
const PROGRAMS: &str = "ebpf";

/// A number of the register: `5041-58`, `5041-s3` for what an RFC only recommends, `5041-72b` for
/// the second point of a list that stands under one MUST.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Id {
    rfc: u16,
    recommended: bool,
    number: u16,
    /// 0: all of it, 1: point a.
    point: u8,
}

impl Id {
    fn parse(text: &str) -> Option<Self> {
        let (rfc, number) = text.split_once('-')?;
        let recommended = number.starts_with('s');
        let number = number.strip_prefix('s').unwrap_or(number);
        let letter = number.bytes().next_back().filter(u8::is_ascii_lowercase);
        let number = &number[..number.len() - usize::from(letter.is_some())];
        let is_number = |text: &str| text.bytes().all(|octet| octet.is_ascii_digit());
        if rfc.len() != 4 || !is_number(rfc) || !is_number(number) {
            return None;
        }
        Some(Self {
            rfc: rfc.parse().ok()?,
            recommended,
            number: number.parse().ok()?,
            point: letter.map_or(0, |letter| letter - b'a' + 1),
        })
    }

    /// The requirement that this is a point of, or this.
    fn whole(self) -> Self {
        Self { point: 0, ..self }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.recommended { "s" } else { "" };
        write!(f, "{}-{mark}{}", self.rfc, self.number)?;
        match self.point {
            0 => Ok(()),
            point => write!(f, "{}", char::from(b'a' + point - 1)),
        }
    }
}

/// Why a requirement has no code or no test that cites it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exception {
    /// It is not there yet.
    Gap,
    /// It is done otherwise on purpose.
    Deviation,
    /// It is required of others: the application, the administrator, another protocol.
    OtherParty,
    /// It requires nothing that can be observed: terms, headings, or what other requirements state
    /// in detail.
    NotTestable,
}

impl Exception {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "gap" => Self::Gap,
            "deviation" => Self::Deviation,
            "other-party" => Self::OtherParty,
            "not-testable" => Self::NotTestable,
            _ => return None,
        })
    }
}

struct Requirement {
    section: String,
    exception: Option<Exception>,
}

#[derive(Default)]
struct Register {
    requirements: BTreeMap<Id, Requirement>,
    faults: Vec<String>,
}

impl Register {
    fn read(directory: &Path) -> Self {
        let mut register = Self::default();
        for file in files(directory, "txt") {
            let text = fs::read_to_string(&file).unwrap();
            register.add(&file.display().to_string(), &text);
        }
        register
    }

    /// Adds the lines of a file: a requirement in each, an exception indented below what it
    /// excepts.
    fn add(&mut self, file: &str, text: &str) {
        let mut last = None;
        for (index, line) in text.lines().enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let taken = match line.strip_prefix("  ") {
                Some(exception) => last.take().and_then(|id| self.except(id, exception)),
                None => self.require(line).map(|id| last = Some(id)),
            };
            if taken.is_none() {
                self.faults.push(format!("{file}:{}: {line}", index + 1));
            }
        }
    }

    /// `ID §SECTION SUMMARY`
    fn require(&mut self, line: &str) -> Option<Id> {
        let mut words = line.splitn(3, ' ');
        let id = Id::parse(words.next()?)?;
        let section = words.next()?.strip_prefix('§')?.to_owned();
        words.next().filter(|summary| !summary.is_empty())?;
        if self.requirements.contains_key(&id) {
            return None;
        }
        let requirement = Requirement {
            section,
            exception: None,
        };
        self.requirements.insert(id, requirement);
        Some(id)
    }

    /// `KIND: REASON`
    fn except(&mut self, id: Id, line: &str) -> Option<()> {
        let (kind, reason) = line.split_once(": ")?;
        let exception = Exception::parse(kind).filter(|_| !reason.is_empty())?;
        self.requirements.get_mut(&id)?.exception = Some(exception);
        Some(())
    }

    /// Returns the numbers and points that are left out.
    fn missing(&self) -> Vec<Id> {
        let ids = || self.requirements.keys();
        let last: BTreeMap<(u16, bool), Id> =
            ids().map(|id| ((id.rfc, id.recommended), *id)).collect();
        let last_point: BTreeMap<Id, Id> = ids().map(|id| (id.whole(), *id)).collect();
        let numbers = last.values().flat_map(|&last| {
            (1..=last.number).map(move |number| Id {
                number,
                point: 0,
                ..last
            })
        });
        let points = last_point
            .values()
            .flat_map(|&last| (1..=last.point).map(move |point| Id { point, ..last }));
        numbers
            .chain(points)
            .filter(|id| !self.requirements.contains_key(id))
            .collect()
    }

    /// Returns whether this is only the head of a list: each point of it stands for itself.
    fn is_head(&self, id: Id) -> bool {
        self.requirements.contains_key(&Id { point: 1, ..id }) && id.point == 0
    }
}

/// What code and tests cite.
#[derive(Default)]
struct Citations {
    code: BTreeSet<Id>,
    tests: BTreeSet<Id>,
    /// Where each is first cited.
    places: BTreeMap<Id, String>,
    faults: Vec<String>,
}

impl Citations {
    fn read(root: &Path) -> Self {
        let mut citations = Self::default();
        for directory in CRATES
            .iter()
            .flat_map(|name| ["src", "tests"].map(|d| root.join(name).join(d)))
        {
            for file in files(&directory, "rs") {
                // Helpers of tests are neither code nor tests; and this file mentions all ids.
                if file.ends_with("tests/conformance.rs")
                    || file.components().any(|c| c.as_os_str() == "testing")
                {
                    continue;
                }
                // A model is what tests compare the code with.
                let is_test = file.ends_with("tests.rs")
                    || file.ends_with("model.rs")
                    || file.components().any(|c| c.as_os_str() == "tests");
                let text = fs::read_to_string(&file).unwrap();
                let name = file.strip_prefix(root).unwrap_or(&file);
                citations.add(&name.display().to_string(), is_test, &text);
            }
        }
        for file in files(&root.join(PROGRAMS), "c") {
            let text = fs::read_to_string(&file).unwrap();
            let name = file.strip_prefix(root).unwrap_or(&file);
            citations.add(&name.display().to_string(), false, &text);
        }
        citations
    }

    /// Adds those of a file. A test module in it comes last.
    fn add(&mut self, file: &str, mut is_test: bool, text: &str) {
        let mut attribute = false;
        for (index, line) in text.lines().enumerate() {
            is_test |= attribute && line.contains("mod ") && line.ends_with('{');
            attribute = line == "#[cfg(test)]";
            let place = format!("{file}:{}", index + 1);
            match cited(line) {
                Some(ids) => {
                    for id in ids {
                        let set = if is_test {
                            &mut self.tests
                        } else {
                            &mut self.code
                        };
                        set.insert(id);
                        self.places.entry(id).or_insert_with(|| place.clone());
                    }
                }
                None => self.faults.push(format!("{place}: {}", line.trim())),
            }
        }
    }
}

/// Reads the numbers that a line cites: in a comment, behind `rfc:`, with commas between them, and
/// then, without a comma, what they require in a few words:
/// `rfc: 1000-1, 1000-2 each segment has a checksum`. `None` if the line is written otherwise.
fn cited(line: &str) -> Option<Vec<Id>> {
    let comment = line.find("//").map_or("", |at| &line[at..]);
    let Some((_, list)) = comment.split_once("rfc: ") else {
        return Some(Vec::new());
    };
    let mut ids = Vec::new();
    let mut words = list.split(' ');
    for word in words.by_ref() {
        ids.push(Id::parse(word.trim_end_matches([',', ':', '.']))?);
        if !word.ends_with(',') {
            break;
        }
    }
    // Another number would be one whose comma was forgotten.
    let forgotten = words
        .next()
        .is_some_and(|word| Id::parse(word.trim_end_matches(',')).is_some());
    (!forgotten).then_some(ids)
}

/// Files with an ending, below a directory, in order.
fn files(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = entries
        .flat_map(|entry| {
            let path = entry.unwrap().path();
            if path.is_dir() {
                return files(&path, ending);
            }
            let matches = path.extension().is_some_and(|found| found == ending);
            matches.then_some(path).into_iter().collect()
        })
        .collect();
    found.sort();
    found
}

/// Everything that is wrong between the two.
fn faults(register: &Register, citations: &Citations) -> Vec<String> {
    let mut faults = Vec::new();
    faults.extend(
        register
            .faults
            .iter()
            .map(|line| format!("not understood, or there twice: {line}")),
    );
    faults.extend(
        register
            .missing()
            .iter()
            .map(|id| format!("{id} is left out of the register")),
    );
    faults.extend(
        citations
            .faults
            .iter()
            .map(|line| format!("not a list of numbers: {line}")),
    );
    let registered: BTreeSet<u16> = register.requirements.keys().map(|id| id.rfc).collect();
    for (id, place) in &citations.places {
        if registered.contains(&id.rfc) && !register.requirements.contains_key(id) {
            faults.push(format!("{place} cites {id}, which is not in the register"));
        }
    }
    for (id, requirement) in &register.requirements {
        let (code, test) = (citations.code.contains(id), citations.tests.contains(id));
        if register.is_head(*id) {
            if requirement.exception.is_some() || code || test {
                faults.push(format!(
                    "{id} is a list: its points are met, excepted and cited"
                ));
            }
            continue;
        }
        match (requirement.exception, code, test) {
            (None, false, false) => faults.push(format!("{id} has neither code nor test")),
            (None, false, true) => {
                faults.push(format!("{id} has a test, and no code that cites it"))
            }
            (None, true, false) => faults.push(format!("{id} has code, and no test that cites it")),
            (Some(_), true, true) => {
                faults.push(format!("{id} is excepted, and has code and test"))
            }
            _ => {}
        }
    }
    faults
}

/// How many requirements stand how, in a section or an RFC.
#[derive(Clone, Copy, Default)]
struct Counts {
    all: usize,
    met: usize,
    tested: usize,
    gaps: usize,
    deviations: usize,
    other_party: usize,
    not_testable: usize,
}

impl Counts {
    fn add(&mut self, exception: Option<Exception>, code: bool, test: bool) {
        self.all += 1;
        match exception {
            None => {
                self.met += usize::from(code);
                self.tested += usize::from(code && test);
            }
            Some(Exception::Gap) => self.gaps += 1,
            Some(Exception::Deviation) => self.deviations += 1,
            Some(Exception::OtherParty) => self.other_party += 1,
            Some(Exception::NotTestable) => self.not_testable += 1,
        }
    }

    fn row(&self, name: &str) -> String {
        let Self {
            all,
            met,
            tested,
            gaps,
            deviations,
            other_party,
            not_testable,
        } = self;
        format!(
            "{name:<22}{all:>7}{met:>7}{tested:>7}{gaps:>7}{deviations:>11}{other_party:>13}{not_testable:>14}\n"
        )
    }
}

/// The register in numbers, by RFC and section; MUSTs and SHOULDs apart in the sums.
fn table(register: &Register, citations: &Citations) -> String {
    let mut sections: BTreeMap<u16, Vec<(String, Counts)>> = BTreeMap::new();
    let mut sums: BTreeMap<(u16, bool), Counts> = BTreeMap::new();
    for (id, requirement) in &register.requirements {
        if register.is_head(*id) {
            continue;
        }
        let (code, test) = (citations.code.contains(id), citations.tests.contains(id));
        let rows = sections.entry(id.rfc).or_default();
        let at = rows
            .iter()
            .position(|(name, _)| *name == requirement.section)
            .unwrap_or_else(|| {
                rows.push((requirement.section.clone(), Counts::default()));
                rows.len() - 1
            });
        rows[at].1.add(requirement.exception, code, test);
        let sum = sums.entry((id.rfc, id.recommended)).or_default();
        sum.add(requirement.exception, code, test);
    }
    let head = "                          all    met tested   gaps deviations  other party  not testable\n";
    let mut table = String::from(head);
    for (rfc, mut rows) in sections {
        table += &format!("RFC {rfc}\n");
        rows.sort_by_key(|(name, _)| section_order(name));
        for (name, counts) in rows {
            table += &counts.row(&format!("  section {name}"));
        }
        for (recommended, name) in [(false, "  MUST"), (true, "  SHOULD")] {
            if let Some(counts) = sums.get(&(rfc, recommended)) {
                table += &counts.row(name);
            }
        }
    }
    table
}

/// Sections in the order of their numbers.
fn section_order(name: &str) -> Vec<(u32, String)> {
    name.split('.')
        .map(|part| (part.parse().unwrap_or(u32::MAX), part.to_owned()))
        .collect()
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read_all() -> (Register, Citations) {
    let root = workspace();
    (
        Register::read(&root.join("rnic-core/conformance")),
        Citations::read(&root),
    )
}

#[test]
fn every_requirement_has_code_and_test_or_a_reason() {
    let (register, citations) = read_all();
    println!("{}", table(&register, &citations));
    let faults = faults(&register, &citations);
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

#[test]
fn each_fault_is_found() {
    let mut register = Register::default();
    register.add(
        "r",
        "# of tests\n1000-1 §1 met\n1000-2 §1 no test\n1000-3 §1 no code\n1000-4 §1 neither\n\
         1000-5 §1 excepted for nothing\n  gap: later\n1000-6 §1 excepted\n  other-party: theirs\n\
         1000-6 §1 twice\n1000-8 §2 met\n  gap:\n1000-s1 §2\n1000-9 §3 a list\n1000-9a §3 met\n\
         1000-9b §3 no test\n1000-9d §3 excepted\n  gap: later\n",
    );
    let mut citations = Citations::default();
    citations.add(
        "c",
        false,
        "// rfc: 1000-1, 1000-2 each segment, 8 octets or more, has one\nx(); // because: rfc: 1000-5: it is\n// rfc: 1000-8 1000-1\n/// rfc: 1000-8\n\
         // rfc: 1000-9a, 1000-9b\n#[cfg(test)]\nmod elsewhere;\n// rfc: 1000-10\n#[cfg(test)]\nmod tests {\n// rfc: 1000-1, 1000-3\n",
    );
    citations.add(
        "t",
        true,
        "// rfc: 1000-5, 1000-8, 1000-9, 1000-9a\n// rfc: all of it\n// rfc: 2000-1\n",
    );
    let expected = [
        "not understood, or there twice: r:10: 1000-6 §1 twice",
        "not understood, or there twice: r:12:   gap:",
        "not understood, or there twice: r:13: 1000-s1 §2",
        "1000-7 is left out of the register",
        "1000-9c is left out of the register",
        "not a list of numbers: c:3: // rfc: 1000-8 1000-1",
        "not a list of numbers: t:2: // rfc: all of it",
        "c:8 cites 1000-10, which is not in the register",
        "1000-2 has code, and no test that cites it",
        "1000-3 has a test, and no code that cites it",
        "1000-4 has neither code nor test",
        "1000-5 is excepted, and has code and test",
        "1000-9 is a list: its points are met, excepted and cited",
        "1000-9b has code, and no test that cites it",
    ];
    assert_eq!(faults(&register, &citations), expected);
}
