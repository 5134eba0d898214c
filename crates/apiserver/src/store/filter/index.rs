//! Selectors with many requirements, grouped by label and by field.
//!
//! A URL has room for thousands of requirements, and a list compares each of them with every object
//! while it holds the store. Grouped, an object costs what its own labels and fields cost.

use std::collections::{BTreeSet, HashMap};

use weft_model::{
    LabelSelector,
    selector::{FieldOperator, Operator, Requirement},
};

use super::field_value;
use crate::{
    kind::{FieldCondition, FieldRef},
    store::Stored,
};

/// The requirements of one request.
#[derive(Debug, Clone, Default)]
pub(super) struct Index {
    labels: HashMap<String, LabelCondition>,
    /// Labels that have to be there.
    required: usize,
    fields: HashMap<FieldRef, Values>,
}

/// The values that something may have.
#[derive(Debug, Clone, Default)]
struct Values {
    /// One of these, where it is set.
    any_of: Option<BTreeSet<String>>,
    none_of: BTreeSet<String>,
}

/// All requirements of one label.
#[derive(Debug, Clone, Default)]
struct LabelCondition {
    is_required: bool,
    is_forbidden: bool,
    values: Values,
    /// Exclusive bounds of an integer.
    above: Option<i64>,
    below: Option<i64>,
}

impl Index {
    pub(super) fn new(labels: &LabelSelector, fields: &[FieldCondition]) -> Self {
        let mut index = Self::default();
        for requirement in labels.requirements() {
            let key = requirement.key().to_owned();
            index.labels.entry(key).or_default().add(requirement);
        }
        let conditions = index.labels.values();
        index.required = conditions.filter(|label| label.is_required).count();
        for FieldCondition { field, requirement } in fields {
            let values = index.fields.entry(*field).or_default();
            let value = &requirement.value;
            match requirement.operator {
                FieldOperator::Equals => values.limit(std::slice::from_ref(value)),
                FieldOperator::NotEquals => values.exclude(std::slice::from_ref(value)),
            }
        }
        index
    }

    pub(super) fn matches(&self, object: &Stored) -> bool {
        let mut found = 0;
        for (key, value) in &object.labels {
            let Some(label) = self.labels.get(key.as_str()) else {
                continue;
            };
            if !label.accepts(value) {
                return false;
            }
            found += usize::from(label.is_required);
        }
        let mut fields = self.fields.iter();
        found == self.required
            && fields.all(|(field, values)| values.accept(field_value(object, *field)))
    }
}

impl Values {
    /// The values are sorted.
    fn limit(&mut self, values: &[String]) {
        match &mut self.any_of {
            Some(any_of) => any_of.retain(|known| values.binary_search(known).is_ok()),
            None => self.any_of = Some(values.iter().cloned().collect()),
        }
    }

    fn exclude(&mut self, values: &[String]) {
        self.none_of.extend(values.iter().cloned());
    }

    fn accept(&self, value: &str) -> bool {
        let any_of = self.any_of.as_ref();
        any_of.is_none_or(|any_of| any_of.contains(value)) && !self.none_of.contains(value)
    }
}

impl LabelCondition {
    fn add(&mut self, requirement: &Requirement) {
        let values = requirement.values();
        // One that cannot be read is a bound that nothing is beyond.
        let bound = || values.first().and_then(|value| value.parse::<i64>().ok());
        match requirement.operator() {
            Operator::Exists => self.is_required = true,
            Operator::DoesNotExist => self.is_forbidden = true,
            Operator::NotIn => self.values.exclude(values),
            Operator::In => {
                self.is_required = true;
                self.values.limit(values);
            }
            Operator::GreaterThan => {
                self.is_required = true;
                self.above = self.above.max(Some(bound().unwrap_or(i64::MAX)));
            }
            Operator::LessThan => {
                self.is_required = true;
                let bound = bound().unwrap_or(i64::MIN);
                self.below = Some(self.below.map_or(bound, |below| below.min(bound)));
            }
        }
    }

    fn accepts(&self, value: &str) -> bool {
        let is_within = || {
            let Ok(number) = value.parse::<i64>() else {
                return false;
            };
            self.above.is_none_or(|above| number > above)
                && self.below.is_none_or(|below| number < below)
        };
        let is_bounded = self.above.is_some() || self.below.is_some();
        !self.is_forbidden && self.values.accept(value) && (!is_bounded || is_within())
    }
}
