//! Pages of a list in the Hetzner Cloud API.

use serde_json::{Value, json};

use crate::clouds::server::ApiCall;

/// A page of a list, as `page` and `per_page` ask for it.
#[derive(Debug)]
pub(super) struct Page {
    items: Vec<Value>,
    number: usize,
    size: usize,
    total: usize,
}

const DEFAULT_SIZE: usize = 25;
const LARGEST_SIZE: usize = 50;

impl Page {
    pub(super) fn of(call: &ApiCall, all: Vec<Value>) -> Self {
        let number = |name, default| {
            let given = call.parameter(name).and_then(|text| text.parse().ok());
            given.filter(|number| *number > 0).unwrap_or(default)
        };
        let (number, size) = (
            number("page", 1),
            number("per_page", DEFAULT_SIZE).min(LARGEST_SIZE),
        );
        let total = all.len();
        let items = all.into_iter().skip((number - 1) * size).take(size);
        Self {
            items: items.collect(),
            number,
            size,
            total,
        }
    }

    pub(super) fn to_json(&self, name: &str) -> Value {
        let last = self.total.div_ceil(self.size).max(1);
        let pagination = json!({
            "page": self.number, "per_page": self.size, "last_page": last,
            "previous_page": (self.number > 1).then(|| self.number - 1),
            "next_page": (self.number < last).then(|| self.number + 1),
            "total_entries": self.total,
        });
        json!({name: self.items, "meta": {"pagination": pagination}})
    }
}
