//! Damage to the address store: reported, or without effect on what was acknowledged.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use tempfile::TempDir;
use weft_ipam::pool::{Attachment, Identity, Journal, Key, Lease, PodIdentity, Record};
use weft_ipam_daemon::store::{Opened, Store, counter_file, file};
use weft_model::{Moment, SharedStr};

const BOOT: &str = "5e1f4a1e-0000-4000-8000-00000000b001";
const PAGE: usize = 4096;

fn open(directory: &Path) -> Opened {
    Store::open(directory, BOOT).unwrap()
}

fn identity(boot: &str) -> Record {
    Record::Identity(Identity {
        machine: SharedStr::new("machine"),
        boot: SharedStr::new(boot),
    })
}

fn attachment(number: u8) -> (Key, Attachment) {
    let held = Attachment {
        pod: PodIdentity {
            namespace: SharedStr::new("default"),
            name: SharedStr::new(&format!("pod-{number}")),
            uid: Some(format!("uid-{number}").as_str().into()),
        },
        leases: vec![Lease {
            address: [10, 1, 0, number].into(),
            prefix: 16,
            gateway: None,
            container: "nc".into(),
        }],
        epoch: "epoch".into(),
        at: Moment::seconds(1),
    };
    (
        Key::new("podnet", &format!("sandbox-{number}"), "eth0"),
        held,
    )
}

fn add(store: &Store, number: u8) {
    let (key, held) = attachment(number);
    store
        .commit(&[Record::Attachment(key, Some(held))])
        .unwrap();
}

fn delete(store: &Store, number: u8) {
    let (key, _) = attachment(number);
    store.commit(&[Record::Attachment(key, None)]).unwrap();
}

/// Records in sorted order.
fn sorted(records: &[Record]) -> BTreeSet<String> {
    records.iter().map(|record| format!("{record:?}")).collect()
}

/// The files of a daemon that was killed: written, but never closed.
struct Killed {
    store: Vec<u8>,
    counter: Vec<u8>,
    /// Everything that was acknowledged.
    expected: BTreeSet<String>,
    /// Offsets that the newest commit wrote.
    newest: Vec<usize>,
}

impl Killed {
    /// Twenty ADDs and a DEL, then the last acknowledged change.
    fn after(last: impl FnOnce(&Store)) -> Self {
        let running = tempfile::tempdir().unwrap();
        let store = open(running.path()).store;
        store.commit(&[identity(BOOT)]).unwrap();
        (1..=20).for_each(|number| add(&store, number));
        delete(&store, 7);
        let before = fs::read(file(running.path())).unwrap();
        last(&store);
        let killed = Self::copy(running.path());
        let written = (0..killed.store.len())
            .filter(|at| before.get(*at) != killed.store.get(*at))
            .collect();
        drop(store);
        let Journal::Kept(records) = open(running.path()).journal else {
            panic!("lost without damage")
        };
        Self {
            expected: sorted(&records),
            newest: written,
            ..killed
        }
    }

    fn copy(directory: &Path) -> Self {
        Self {
            store: fs::read(file(directory)).unwrap(),
            counter: fs::read(counter_file(directory)).unwrap(),
            expected: BTreeSet::new(),
            newest: Vec::new(),
        }
    }

    fn restore(&self) -> TempDir {
        let directory = tempfile::tempdir().unwrap();
        fs::write(file(directory.path()), &self.store).unwrap();
        fs::write(counter_file(directory.path()), &self.counter).unwrap();
        directory
    }

    /// A start on these files knows exactly what was acknowledged, or reports a loss and keeps the
    /// file.
    #[track_caller]
    fn judge(&self, directory: &Path, what: &str) -> Verdict {
        let was_there = file(directory).exists();
        let opened = open(directory);
        match (&opened.journal, &opened.loss) {
            (Journal::Kept(records), None) => {
                assert_eq!(sorted(records), self.expected, "{what}");
                Verdict::Kept
            }
            (Journal::Lost, Some(loss)) => {
                let kept = loss.moved.as_ref().is_some_and(|path| path.exists());
                assert_eq!(kept, was_there, "{what}: {loss:?}");
                Verdict::Lost
            }
            other => panic!("{what}: {other:?}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Kept,
    Lost,
}

/// A deterministic pseudo-random generator.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }
}

/// Bits to flip: 200 anywhere in the pages that are used, every bit of the first byte that the
/// newest commit wrote in each 64 bytes, and the whole header.
fn bits(killed: &Killed) -> BTreeSet<(usize, u8)> {
    let mut random = Random(17);
    let used: Vec<usize> = (0..killed.store.len() / PAGE)
        .filter(|page| {
            killed.store[page * PAGE..][..PAGE]
                .iter()
                .any(|byte| *byte != 0)
        })
        .collect();
    let mut bits = BTreeSet::new();
    while bits.len() < 200 {
        let page = used[random.below(used.len())];
        bits.insert((
            page * PAGE + random.below(PAGE),
            u8::try_from(random.below(8)).unwrap(),
        ));
    }
    let mut places = BTreeSet::new();
    for at in &killed.newest {
        if places.insert(at / 64) {
            bits.insert((*at, u8::try_from(random.below(8)).unwrap()));
        }
    }
    // Magic number, flags and sizes, then both commit slots.
    bits.extend((0..20).flat_map(|at| (0..8).map(move |bit| (at, bit))));
    bits.extend((20..320).step_by(3).map(|at| (at, 0)));
    // The format version of each slot: a flipped bit looks like an older format.
    bits.extend([64, 192].into_iter().flat_map(|at| [(at, 0), (at, 1)]));
    bits
}

fn flip(killed: &Killed) {
    let (mut kept, mut lost) = (0, 0);
    for (at, bit) in bits(killed) {
        let directory = killed.restore();
        let mut bytes = killed.store.clone();
        bytes[at] ^= 1 << bit;
        fs::write(file(directory.path()), &bytes).unwrap();
        match killed.judge(directory.path(), &format!("bit {bit} of byte {at}")) {
            Verdict::Kept => kept += 1,
            Verdict::Lost => lost += 1,
        }
    }
    assert!(kept > 0 && lost > 0, "{kept} kept, {lost} lost");
}

#[test]
fn one_flipped_bit_in_a_killed_store_never_forgets_an_acknowledged_add() {
    flip(&Killed::after(|store| add(store, 21)));
}

#[test]
fn one_flipped_bit_in_a_killed_store_never_brings_back_a_deleted_attachment() {
    flip(&Killed::after(|store| delete(store, 3)));
}

/// The newest commit is missing, as after a write that the disk lost.
#[test]
fn a_store_that_is_one_acknowledged_commit_behind_is_lost() {
    let running = tempfile::tempdir().unwrap();
    let store = open(running.path()).store;
    store.commit(&[identity(BOOT)]).unwrap();
    add(&store, 1);
    let earlier = fs::read(file(running.path())).unwrap();
    add(&store, 2);
    drop(store);
    fs::write(file(running.path()), earlier).unwrap();
    let opened = open(running.path());
    assert_eq!(opened.journal, Journal::Lost);
    let loss = opened.loss.unwrap();
    assert_eq!(loss.flaw, "newest commit is 3: expected at least 4");
}

#[test]
fn an_empty_store_is_lost_and_not_new() {
    let killed = Killed::after(|store| add(store, 21));
    for counter in [Some(killed.counter.as_slice()), Some(b""), None] {
        let directory = tempfile::tempdir().unwrap();
        fs::write(file(directory.path()), "").unwrap();
        if let Some(counter) = counter {
            fs::write(counter_file(directory.path()), counter).unwrap();
        }
        let verdict = killed.judge(directory.path(), "empty");
        assert_eq!(verdict, Verdict::Lost, "counter {counter:?}");
    }
}

#[test]
fn a_store_that_is_gone_is_lost_and_not_new() {
    let killed = Killed::after(|store| add(store, 21));
    let directory = killed.restore();
    fs::remove_file(file(directory.path())).unwrap();
    assert_eq!(killed.judge(directory.path(), "gone"), Verdict::Lost);
}

/// Without the counter, nothing proves that the newest commit of the store is the newest
/// acknowledged one.
#[test]
fn a_store_whose_counter_is_gone_empty_or_damaged_is_lost() {
    let killed = Killed::after(|store| add(store, 21));
    let mut verdicts = Vec::new();
    for counter in [None, Some(Vec::new()), Some(vec![0; killed.counter.len()])] {
        let directory = killed.restore();
        fs::remove_file(counter_file(directory.path())).unwrap();
        if let Some(counter) = counter {
            fs::write(counter_file(directory.path()), counter).unwrap();
        }
        verdicts.push(killed.judge(directory.path(), "counter"));
    }
    for at in 0..killed.counter.len() {
        let directory = killed.restore();
        let mut counter = killed.counter.clone();
        counter[at] ^= 1 << (at % 8);
        fs::write(counter_file(directory.path()), counter).unwrap();
        verdicts.push(killed.judge(directory.path(), &format!("byte {at} of the counter")));
    }
    assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Lost));
}

/// No sandbox survives a reboot, so a missing counter cannot hide anything.
#[test]
fn after_a_reboot_a_store_needs_no_counter() {
    let killed = Killed::after(|store| add(store, 21));
    for counter in [None, Some(killed.counter.clone()), Some(vec![0x5a; 100])] {
        let directory = killed.restore();
        fs::remove_file(counter_file(directory.path())).unwrap();
        if let Some(counter) = counter {
            fs::write(counter_file(directory.path()), counter).unwrap();
        }
        let opened = Store::open(directory.path(), "the next boot").unwrap();
        assert!(opened.loss.is_none(), "{:?}", opened.loss);
        let Journal::Kept(records) = &opened.journal else {
            panic!("lost");
        };
        assert_eq!(sorted(records), killed.expected);
        // From here on it is counted for this boot.
        opened.store.commit(&[identity("the next boot")]).unwrap();
        drop(opened);
        let again = Store::open(directory.path(), "the next boot").unwrap();
        assert!(again.loss.is_none(), "{:?}", again.loss);
    }
}

#[test]
fn a_fresh_directory_is_new_and_not_a_loss() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("var/lib/weft/ipam");
    let opened = open(&directory);
    assert_eq!(opened.journal, Journal::Kept(Vec::new()));
    assert!(opened.loss.is_none());
    drop(opened);
    // The same if the first process ended before any request.
    let opened = open(&directory);
    assert_eq!(opened.journal, Journal::Kept(Vec::new()));
    assert!(opened.loss.is_none());
}

/// A crash in the first start, after each of its steps.
#[test]
fn an_interrupted_first_start_is_new_and_not_a_loss() {
    let whole = tempfile::tempdir().unwrap();
    drop(open(whole.path()));
    let counter = fs::read(counter_file(whole.path())).unwrap();
    let unfinished = |name: &str| PathBuf::from(format!("{name}.new"));
    for (left, content) in [
        (unfinished("addresses.commits"), b"weft".as_slice()),
        (unfinished("addresses.redb"), b"".as_slice()),
        (unfinished("addresses.redb"), &[0x5a; 5000]),
    ] {
        let directory = tempfile::tempdir().unwrap();
        if left.starts_with("addresses.redb.new") {
            fs::write(counter_file(directory.path()), &counter).unwrap();
        }
        fs::write(directory.path().join(&left), content).unwrap();
        let opened = open(directory.path());
        assert_eq!(opened.journal, Journal::Kept(Vec::new()), "{left:?}");
        assert!(opened.loss.is_none(), "{left:?}");
        drop(opened);
        let names = fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(names, 2, "{left:?} is gone");
    }
}

/// A crash while a damaged store is being replaced must not turn the loss into a first start.
#[test]
fn an_interrupted_replacement_is_a_loss_again() {
    let killed = Killed::after(|store| add(store, 21));
    let directory = killed.restore();
    fs::write(file(directory.path()), [0x5a; 8192]).unwrap();
    assert_eq!(killed.judge(directory.path(), "garbage"), Verdict::Lost);
    // The daemon wrote nothing into the new store before it ended.
    let opened = open(directory.path());
    assert_eq!(opened.journal, Journal::Kept(vec![Record::Lost(true)]));
    drop(opened);
    // Or it ended between the two renames.
    fs::remove_file(file(directory.path())).unwrap();
    assert_eq!(killed.judge(directory.path(), "gone"), Verdict::Lost);
}

/// Damage to a store of a program without a counter: still a loss after a crash in between.
#[test]
fn a_damaged_store_without_counter_is_a_loss_also_after_a_crash() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(file(directory.path()), [0x5a; 8192]).unwrap();
    let opened = open(directory.path());
    assert_eq!(opened.journal, Journal::Lost);
    drop(opened);
    fs::remove_file(file(directory.path())).unwrap();
    assert_eq!(open(directory.path()).journal, Journal::Lost);
}

#[test]
fn a_store_of_a_program_that_did_not_count_is_locked_over_without_alarm() {
    use redb::{Database, TableDefinition};
    let about: TableDefinition<'_, &str, u64> = TableDefinition::new("about");
    let directory = tempfile::tempdir().unwrap();
    let (_, held) = attachment(1);
    {
        // As the previous version of the program wrote it.
        let rows: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("rows");
        let database = Database::create(file(directory.path())).unwrap();
        let write = database.begin_write().unwrap();
        {
            write
                .open_table(about)
                .unwrap()
                .insert("format", 1)
                .unwrap();
            let mut rows = write.open_table(rows).unwrap();
            let (key, _) = attachment(1);
            let name = format!("attachment {}", serde_json::to_string(&key).unwrap());
            let record = Record::Attachment(key, Some(held.clone()));
            let value = serde_json::to_vec(&record).unwrap();
            rows.insert(name.as_str(), value.as_slice()).unwrap();
            let value = serde_json::to_vec(&identity(BOOT)).unwrap();
            rows.insert("identity", value.as_slice()).unwrap();
        }
        write.commit().unwrap();
    }
    for start in 0..3 {
        let opened = open(directory.path());
        assert!(opened.loss.is_none(), "start {start}: {:?}", opened.loss);
        let Journal::Kept(records) = opened.journal else {
            panic!("lost");
        };
        assert_eq!(records.len(), 2);
    }
    // From the first start on its absence would be noticed.
    fs::remove_file(file(directory.path())).unwrap();
    assert_eq!(open(directory.path()).journal, Journal::Lost);
}

#[test]
fn a_counter_that_is_a_fifo_is_an_error_and_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    add(&open(directory.path()).store, 1);
    let counter = counter_file(directory.path());
    fs::remove_file(&counter).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&counter).status();
    assert!(made.unwrap().success());
    let (done, opened) = std::sync::mpsc::channel();
    let path = directory.path().to_owned();
    std::thread::spawn(move || done.send(Store::open(&path, BOOT).map(drop)));
    let opened = opened.recv_timeout(std::time::Duration::from_secs(30));
    opened.expect("it waits for the FIFO").unwrap_err();
}

#[test]
fn a_counter_that_is_not_a_file_is_an_error_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    add(&open(directory.path()).store, 1);
    let before = fs::read(file(directory.path())).unwrap();
    fs::remove_file(counter_file(directory.path())).unwrap();
    fs::create_dir(counter_file(directory.path())).unwrap();
    Store::open(directory.path(), BOOT).unwrap_err();
    assert_eq!(
        fs::read(file(directory.path())).unwrap().len(),
        before.len()
    );
    fs::remove_dir(counter_file(directory.path())).unwrap();
    let names = fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(names, 1, "nothing was moved aside");
}

#[test]
fn no_other_user_can_read_store_and_counter() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let _store = open(directory.path());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&counter_file(directory.path())), 0o600);
    assert_eq!(mode(&file(directory.path())), 0o600);
}
