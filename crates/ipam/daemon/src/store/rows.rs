//! Records as rows of the database.

use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use weft_ipam::pool::Record;

use super::{Flaw, StoreError, failed, flaw};

/// Rows by name; the value is the record that made it, as JSON.
const ROWS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("rows");
const ABOUT: TableDefinition<'_, &str, u64> = TableDefinition::new("about");
const FORMAT: &str = "format";
/// Number of this commit; absent in what an older program wrote.
const COMMITS: &str = "commits";
/// Incremented when an older program could misread the rows.
pub(super) const VERSION: u64 = 1;

/// Treatment of the existing rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Existing {
    Keep,
    Remove,
}

/// Contents of a database.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) records: Vec<Record>,
    /// Number of its newest commit; zero if an older program wrote it.
    pub(super) commits: u64,
}

pub(super) fn write(
    database: &Database,
    records: &[Record],
    existing: Existing,
    commits: u64,
) -> Result<(), StoreError> {
    let transaction = database.begin_write().map_err(failed)?;
    {
        let mut about = transaction.open_table(ABOUT).map_err(failed)?;
        about.insert(FORMAT, VERSION).map_err(failed)?;
        about.insert(COMMITS, commits).map_err(failed)?;
        if existing == Existing::Remove {
            transaction.delete_table(ROWS).map_err(failed)?;
        }
        let mut rows = transaction.open_table(ROWS).map_err(failed)?;
        for record in records {
            let row = name(record)?;
            if removes(record) {
                rows.remove(row.as_str()).map_err(failed)?;
            } else {
                let value = serde_json::to_vec(record)?;
                rows.insert(row.as_str(), value.as_slice())
                    .map_err(failed)?;
            }
        }
    }
    transaction.commit().map_err(failed)
}

pub(super) fn read(database: &Database) -> Result<Contents, Flaw> {
    let transaction = database.begin_read().map_err(|error| flaw(error.into()))?;
    let about = match transaction.open_table(ABOUT) {
        Ok(about) => about,
        // Nothing was ever written.
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Contents::default()),
        Err(error) => return Err(flaw(error.into())),
    };
    let number = |name| {
        let value = about.get(name).map_err(|error| flaw(error.into()))?;
        Ok(value.map_or(0, |value| value.value()))
    };
    let format = number(FORMAT)?;
    if format != VERSION {
        return Err(Flaw::Format(format));
    }
    let table = transaction
        .open_table(ROWS)
        .map_err(|error| flaw(error.into()))?;
    let mut records = Vec::new();
    for entry in table.iter().map_err(|error| flaw(error.into()))? {
        let (row, value) = entry.map_err(|error| flaw(error.into()))?;
        let record: Option<Record> = serde_json::from_slice(value.value()).ok();
        let named = record.filter(|record| name(record).is_ok_and(|name| name == row.value()));
        records.push(named.ok_or_else(|| Flaw::Row(row.value().to_owned()))?);
    }
    let commits = number(COMMITS)?;
    Ok(Contents { records, commits })
}

fn name(record: &Record) -> Result<String, serde_json::Error> {
    Ok(match record {
        Record::Identity(_) => "identity".to_owned(),
        Record::Attachment(key, _) => format!("attachment {}", serde_json::to_string(key)?),
        Record::Cooldown(address, _) => format!("cooldown {address}"),
        Record::Tombstone(key, _) => format!("tombstone {}", serde_json::to_string(key)?),
        Record::Releasing(name, _) => format!("releasing {name}"),
        Record::Lost(_) => "lost".to_owned(),
    })
}

fn removes(record: &Record) -> bool {
    matches!(
        record,
        Record::Attachment(_, None)
            | Record::Cooldown(_, None)
            | Record::Tombstone(_, None)
            | Record::Releasing(_, false)
            | Record::Lost(false)
    )
}
