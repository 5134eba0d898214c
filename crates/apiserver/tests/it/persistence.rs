//! The data directory after crashes and disk corruption.

use std::{
    fs,
    path::{Path, PathBuf},
};

use http::StatusCode;
use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use serde_json::{Value, json};
use tempfile::TempDir;
use weft_apiserver::{ApiServer, OnDamage, PersistenceError};

use crate::support::{MAPS, config_map, get, post};

const FILE: &str = "objects.redb";
const SEAL: &str = "objects.seal";
const RECORDS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("records");
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("versions");

/// Copies a data directory as a crash at this moment would leave it.
fn copy(from: &Path) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in [FILE, SEAL] {
        fs::copy(from.join(name), directory.path().join(name)).unwrap();
    }
    directory
}

fn map(number: usize) -> Value {
    let mut map = config_map(&format!("map-{number}"));
    map["data"] = json!({"text": format!("text of {number}")});
    map
}

async fn write(server: &ApiServer, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let made = post(server, MAPS, &map(number)).await;
        assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    }
}

/// All ConfigMaps of a server, complete.
async fn maps(server: &ApiServer) -> Vec<Value> {
    let list = get(server, MAPS).await.json();
    list["items"].as_array().unwrap().clone()
}

/// A directory with this many ConfigMaps, copied while the server ran, and the one it closed.
async fn directories(count: usize) -> (TempDir, TempDir, Vec<Value>) {
    let closed = tempfile::tempdir().unwrap();
    let server = ApiServer::builder().open(closed.path()).unwrap();
    write(&server, 0..count).await;
    let kept = maps(&server).await;
    let crashed = copy(closed.path());
    drop(server);
    // The background task drops the state asynchronously; the database can be opened only then.
    while Database::open(closed.path().join(FILE)).is_err() {
        tokio::task::yield_now().await;
    }
    (crashed, closed, kept)
}

fn flip(path: PathBuf, bit: usize) {
    let mut bytes = fs::read(&path).unwrap();
    bytes[bit / 8] ^= 1 << (bit % 8);
    fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn no_flipped_bit_loses_or_changes_an_object_silently() {
    let (crashed, closed, kept) = directories(12).await;
    let (mut refused, mut harmless) = (0, 0);
    for (what, from) in [("crashed", &crashed), ("closed", &closed)] {
        let mut places: Vec<(&str, usize)> =
            (0..8 * 36).step_by(7).map(|bit| (SEAL, bit)).collect();
        // Bits of the header, and samples of the rest.
        places.extend((0..8 * 320).step_by(37).map(|bit| (FILE, bit)));
        let bytes = fs::read(from.path().join(FILE)).unwrap();
        let used = bytes.iter().enumerate().filter(|(_, byte)| **byte != 0);
        let used: Vec<usize> = used.map(|(at, _)| at).filter(|at| *at >= 320).collect();
        let stride = used.len() / 150;
        places.extend(
            used.iter()
                .step_by(stride.max(1))
                .map(|at| (FILE, at * 8 + at % 8)),
        );
        // Bits that are certainly inside a record.
        let text = b"text of 5";
        let records = bytes.windows(text.len()).enumerate();
        let records = records.filter(|(_, window)| window == text);
        places.extend(records.map(|(at, _)| (FILE, at * 8 + 1)));
        for (file, bit) in places {
            let directory = copy(from.path());
            flip(directory.path().join(file), bit);
            match ApiServer::builder().open(directory.path()) {
                Ok(server) => {
                    harmless += 1;
                    assert_eq!(maps(&server).await, kept, "{what}: bit {bit} of {file}");
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 50, "{refused} refused, {harmless} harmless");
}

#[tokio::test]
async fn a_damaged_record_is_named_and_the_others_can_be_salvaged() {
    let (_, closed, kept) = directories(12).await;
    // As a disk that returns an older record with valid page checksums.
    let database = Database::open(closed.path().join(FILE)).unwrap();
    let transaction = database.begin_write().unwrap();
    {
        let mut records = transaction.open_table(RECORDS).unwrap();
        let key = "configmaps\0default/map-5";
        let mut record = records.get(key).unwrap().unwrap().value().to_vec();
        *record.last_mut().unwrap() ^= 1;
        records.insert(key, record.as_slice()).unwrap();
    }
    transaction.commit().unwrap();
    drop(database);
    let refused = ApiServer::builder().open(closed.path()).unwrap_err();
    let text = refused.to_string();
    assert!(
        matches!(refused, PersistenceError::Damaged { .. }),
        "{text}"
    );
    assert!(text.contains(FILE), "{text}");
    assert!(
        text.contains("the record of configmaps default/map-5 has a wrong checksum"),
        "{text}"
    );
    let server = ApiServer::builder()
        .on_damage(OnDamage::Salvage)
        .open(closed.path())
        .unwrap();
    let mut whole = kept;
    whole.retain(|map| map["metadata"]["name"] != "map-5");
    assert_eq!(maps(&server).await, whole);
    assert!(closed.path().join("objects.redb.damaged-1").exists());
    write(&server, 100..101).await;
}

#[tokio::test]
async fn a_lost_last_commit_is_damage_and_not_an_older_state() {
    let directory = tempfile::tempdir().unwrap();
    let server = ApiServer::builder().open(directory.path()).unwrap();
    write(&server, 0..3).await;
    let before = copy(directory.path());
    write(&server, 3..4).await;
    // The older database with the newer seal file.
    fs::copy(directory.path().join(SEAL), before.path().join(SEAL)).unwrap();
    let refused = ApiServer::builder().open(before.path()).unwrap_err();
    assert!(
        refused.to_string().contains("was acknowledged"),
        "{refused}"
    );
    fs::write(before.path().join(FILE), "").unwrap();
    let refused = ApiServer::builder().open(before.path()).unwrap_err();
    assert!(
        refused.to_string().contains("was acknowledged"),
        "{refused}"
    );
}

#[tokio::test]
async fn another_database_of_the_acknowledged_version_is_damage() {
    let (_, closed, _) = directories(3).await;
    // As a disk that returns other records of the same version with a matching seal.
    let database = Database::open(closed.path().join(FILE)).unwrap();
    let transaction = database.begin_write().unwrap();
    {
        let mut records = transaction.open_table(RECORDS).unwrap();
        let key = "configmaps\0default/map-1";
        let removed = records.remove(key).unwrap().unwrap().value().to_vec();
        let checksum = u32::from_le_bytes(removed[..4].try_into().unwrap());
        let mut numbers = transaction.open_table(NUMBERS).unwrap();
        for (name, less) in [("count", 1), ("sum", u64::from(checksum))] {
            let number = numbers.get(name).unwrap().unwrap().value();
            numbers.insert(name, number - less).unwrap();
        }
    }
    transaction.commit().unwrap();
    drop(database);
    let refused = ApiServer::builder().open(closed.path()).unwrap_err();
    assert!(
        refused.to_string().contains("differ from objects.seal"),
        "{refused}"
    );
}

#[tokio::test]
async fn an_older_format_is_damage_that_can_be_salvaged() {
    let (_, closed, _) = directories(1).await;
    // One flipped bit in the format version of both commit slots.
    for slot in [64, 192] {
        flip(closed.path().join(FILE), slot * 8);
    }
    let refused = ApiServer::builder().open(closed.path()).unwrap_err();
    assert!(
        matches!(refused, PersistenceError::Damaged { .. }),
        "{refused}"
    );
    let builder = ApiServer::builder().on_damage(OnDamage::Salvage);
    builder.open(closed.path()).unwrap();
    assert!(closed.path().join("objects.redb.damaged-1").exists());
}

#[tokio::test]
async fn a_commit_cut_short_by_a_crash_loses_nothing_acknowledged() {
    const SECTOR: usize = 512;
    let directory = tempfile::tempdir().unwrap();
    let server = ApiServer::builder().open(directory.path()).unwrap();
    write(&server, 0..12).await;
    let kept = maps(&server).await;
    let before = copy(directory.path());
    write(&server, 12..13).await;
    let after = fs::read(directory.path().join(FILE)).unwrap();
    for round in 0_usize..24 {
        let torn = copy(before.path());
        let mut bytes = fs::read(torn.path().join(FILE)).unwrap();
        bytes.resize(after.len().max(bytes.len()), 0);
        // Each sector that the commit wrote either reached the disk or did not.
        let mut number = 0;
        for (old, new) in bytes.chunks_mut(SECTOR).zip(after.chunks(SECTOR)) {
            if old != new {
                number += 1;
                if (round * 0x9E37_79B9 + number * 0x85EB_CA6B) >> 7 & 1 == 1 {
                    old.copy_from_slice(new);
                }
            }
        }
        fs::write(torn.path().join(FILE), bytes).unwrap();
        let server = ApiServer::builder().open(torn.path()).unwrap();
        let mut found = maps(&server).await;
        found.retain(|map| map["metadata"]["name"] != "map-12");
        assert_eq!(found, kept, "round {round}");
    }
}

#[tokio::test]
async fn a_directory_without_checksums_is_read_and_given_them() {
    const UNSEALED: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
    const VERSIONS: TableDefinition<'_, &str, u64> = TableDefinition::new("versions");
    let directory = tempfile::tempdir().unwrap();
    let object = json!({
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"name": "old", "namespace": "default", "uid": "u", "resourceVersion": "5"},
    });
    let database = Database::create(directory.path().join(FILE)).unwrap();
    let transaction = database.begin_write().unwrap();
    {
        let mut objects = transaction.open_table(UNSEALED).unwrap();
        let text = object.to_string();
        objects
            .insert("configmaps\0default/old", text.as_bytes())
            .unwrap();
        let mut versions = transaction.open_table(VERSIONS).unwrap();
        versions.insert("newest", 5).unwrap();
    }
    transaction.commit().unwrap();
    drop(database);
    let server = ApiServer::builder().open(directory.path()).unwrap();
    let found = get(&server, &format!("{MAPS}/old")).await;
    assert_eq!(found.at("/metadata/uid"), "u", "{}", found.text);
    drop(server);
    let database = loop {
        match Database::open(directory.path().join(FILE)) {
            Ok(database) => break database,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    let transaction = database.begin_read().unwrap();
    assert!(transaction.open_table(UNSEALED).is_err(), "moved");
}

/// The error of a server that refuses a directory, with all causes.
fn refusal(directory: &Path) -> String {
    let error = ApiServer::builder().open(directory).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap();
    format!("{error}: {cause}")
}

#[tokio::test]
async fn a_directory_that_others_may_write_to_is_refused_and_untouched() {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    for mode in [0o1777, 0o777, 0o775] {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
        let reason = format!("other users may write to it: its mode is {mode:04o}");
        let refusal = refusal(directory.path());
        assert!(refusal.ends_with(&reason), "{refusal}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
    if !rustix::process::geteuid().is_root() {
        assert!(
            std::env::var_os("CI").is_none(),
            "only root can give a directory away"
        );
        eprintln!("not run: only root can give a directory away");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    chown(directory.path(), Some(65534), None).unwrap();
    let refusal = refusal(directory.path());
    let reason = "it belongs to user 65534: expected 0";
    assert!(refusal.ends_with(reason), "{refusal}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}
