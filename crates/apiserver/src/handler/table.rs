//! `Table` representation of objects, which kubectl prints.

mod builtin;

use serde_json::{Value, json};

use crate::{
    api::{Api, Context},
    custom::RowBudget,
    kind::ResourceType,
    status::{ApiError, Outcome},
    store::{Object, Stored},
    view,
};

/// The part of the object in each row (`includeObject`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Include {
    None,
    Metadata,
    Object,
}

impl Include {
    pub(crate) fn read(context: &Context) -> Outcome<Self> {
        match context.query.get("includeObject") {
            None | Some("" | "Metadata") => Ok(Self::Metadata),
            Some("None") => Ok(Self::None),
            Some("Object") => Ok(Self::Object),
            Some(other) => Err(ApiError::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: \
                 must be 'Metadata', 'Object', 'None', or empty"
            ))),
        }
    }
}

/// One column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) format: String,
    pub(crate) description: String,
    pub(crate) priority: i64,
}

impl Column {
    pub(crate) fn new(name: &str, priority: i64) -> Self {
        let format = if name == "Name" { "name" } else { "" };
        Self {
            name: name.to_owned(),
            kind: "string".to_owned(),
            format: format.to_owned(),
            description: String::new(),
            priority,
        }
    }

    fn definition(&self) -> Value {
        json!({
            "name": self.name, "type": self.kind, "format": self.format,
            "description": self.description, "priority": self.priority,
        })
    }
}

/// The rows of objects.
pub(crate) fn rows<'a>(
    api: &Api,
    kind: &ResourceType,
    objects: impl IntoIterator<Item = &'a Stored>,
    include: Include,
) -> Vec<Value> {
    let row = |stored: &'a Stored| {
        let object = view::object(kind, stored);
        let budget = RowBudget::new(stored.bytes.len());
        let cells = cells(api, kind, &object, budget);
        let mut row = json!({ "cells": cells });
        match include {
            Include::None => row["object"] = Value::Null,
            Include::Metadata => row["object"] = view::metadata(stored),
            Include::Object => row["object"] = Value::Object(object),
        }
        row
    };
    objects.into_iter().map(row).collect()
}

/// The row of a bookmark: cells of an empty object, and the metadata of the bookmark.
pub(crate) fn bookmark_row(
    api: &Api,
    kind: &ResourceType,
    metadata: &Value,
    include: Include,
) -> Value {
    let cells = cells(api, kind, &Object::new(), RowBudget::new(0));
    let mut row = json!({ "cells": cells });
    if include != Include::None {
        row["object"] = json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        });
    }
    row
}

/// The column definitions of a Table; in a watch only the first Table has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Definitions {
    Included,
    Omitted,
}

/// A Table of these rows.
pub(crate) fn table(
    kind: &ResourceType,
    metadata: &Value,
    rows: Vec<Value>,
    definitions: Definitions,
) -> Value {
    let definitions: Option<Vec<Value>> = (definitions == Definitions::Included)
        .then(|| columns(kind).iter().map(Column::definition).collect());
    let mut table = json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": definitions,
    });
    // Outside of `json!`, which would copy the rows.
    table["rows"] = Value::Array(rows);
    table
}

fn columns(kind: &ResourceType) -> Vec<Column> {
    let Some(custom) = &kind.custom else {
        return builtin::columns(kind);
    };
    let own = custom.columns.iter().map(|column| column.column.clone());
    std::iter::once(Column::new("Name", 0)).chain(own).collect()
}

fn cells(api: &Api, kind: &ResourceType, object: &Object, mut budget: RowBudget) -> Vec<Value> {
    let Some(custom) = &kind.custom else {
        return builtin::cells(api, kind, object);
    };
    let name = crate::meta::Meta::name(object).to_owned();
    let columns = custom.columns.iter();
    let own = columns.map(|column| column.cell(api, object, &mut budget));
    std::iter::once(name.into()).chain(own).collect()
}

/// Age of a timestamp in upstream's short form; `<unknown>` when it is not one.
pub(crate) fn age(api: &Api, timestamp: &str) -> Value {
    let Ok(then) = timestamp.parse::<jiff::Timestamp>() else {
        return "<unknown>".into();
    };
    let elapsed = api.clock.now().duration_since(then).as_secs().max(0);
    duration(elapsed).into()
}

/// Upstream's short durations, with one or two units, such as `5d3h` or `8y`.
pub(crate) fn duration(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let pair = |large: i64, unit: &str, rest: i64, small: &str| match rest {
        0 => format!("{large}{unit}"),
        rest => format!("{large}{unit}{rest}{small}"),
    };
    if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        pair(minutes, "m", seconds % 60, "s")
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        pair(hours, "h", minutes % 60, "m")
    } else if hours < 48 {
        format!("{hours}h")
    } else if days < 8 {
        pair(days, "d", hours % 24, "h")
    } else if days < 365 * 2 {
        format!("{days}d")
    } else if days < 365 * 8 {
        pair(days / 365, "y", days % 365, "d")
    } else {
        format!("{}y", days / 365)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_upstream_prints_them() {
        let cases = [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (271, "4m31s"),
            (600, "10m"),
            (3 * 3600, "3h"),
            (3 * 3600 + 120, "3h2m"),
            (9 * 3600, "9h"),
            (51 * 3600, "2d3h"),
            (9 * 86_400, "9d"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(duration(seconds), expected, "{seconds}");
        }
    }
}
