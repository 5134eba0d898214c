//! Clusters on which the two once disagreed.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use weft_testkit::cluster::{Edit, ObjectName, minimal};

/// Number of attempts to find fewer edits that still show the difference.
const ATTEMPTS: usize = 40;

/// And for how long: a lab ends after minutes, and what was found by then is to be told.
const LIMIT: Duration = Duration::from_secs(120);

/// Two that agree do so within this time; one that failed before may not be the fault of an edit.
pub(super) const PATIENCE: Duration = Duration::from_secs(8);

/// Edits after which the kernels differed.
pub(super) struct Disagreement {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) edits: Vec<Edit>,
}

/// The kept disagreements whose names end so; the ending is the kind of comparison.
pub(super) fn kept(endings: &[&str]) -> Vec<Disagreement> {
    let Ok(files) = fs::read_dir(directory()) else {
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    let kept = files.iter().map(|file| Disagreement::read(file));
    kept.filter(|kept| endings.iter().any(|ending| kept.name.ends_with(ending)))
        .collect()
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/disagreements")
}

impl Disagreement {
    pub(super) fn new(seed: u64, how: &str, namespace: &str, edits: Vec<Edit>) -> Self {
        Self {
            name: format!("seed-{seed}-{how}"),
            namespace: namespace.to_owned(),
            edits,
        }
    }

    fn read(file: &Path) -> Self {
        let text = fs::read_to_string(file).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        let edit = |value| Edit::from_json(value).unwrap_or_else(|| panic!("{value}"));
        Self {
            name: file.file_stem().unwrap().to_string_lossy().into_owned(),
            namespace: value["namespace"].as_str().unwrap().to_owned(),
            edits: value["edits"]
                .as_array()
                .unwrap()
                .iter()
                .map(edit)
                .collect(),
        }
    }

    /// Edits that remove every object of these edits.
    pub(super) fn removal(&self) -> Vec<Edit> {
        let names = self.edits.iter().map(|edit| match edit {
            Edit::Put(name, _) | Edit::Delete(name) => name,
        });
        let names: BTreeSet<&ObjectName> = names.filter(|name| name.kind != "Node").collect();
        names.into_iter().cloned().map(Edit::Delete).collect()
    }

    /// Keeps the edits, finds fewer after which the two still differ, and says where those are.
    pub(super) fn minimise(self, mut differ: impl FnMut(&[Edit]) -> bool) -> String {
        self.keep(&self.edits);
        let deadline = Instant::now() + LIMIT;
        let shows = |edits: &[Edit]| {
            let shows = Instant::now() < deadline && differ(edits);
            if shows {
                self.keep(edits);
            }
            shows
        };
        let fewest = minimal(&self.edits, ATTEMPTS, shows).len();
        format!(
            "{fewest} of {} edits still show it; they are kept in tests/disagreements/{}.json",
            self.edits.len(),
            self.name
        )
    }

    fn keep(&self, edits: &[Edit]) {
        let edits: Vec<Value> = edits.iter().map(Edit::to_json).collect();
        let value = json!({"namespace": self.namespace, "edits": edits});
        let text = serde_json::to_string_pretty(&value).unwrap() + "\n";
        fs::create_dir_all(directory()).unwrap();
        fs::write(directory().join(format!("{}.json", self.name)), text).unwrap();
    }
}
