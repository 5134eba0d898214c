//! Connections of each Service and endpoint, from the counters of elements.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::Arc,
};

use weft_host::nftables::{Datum, Element, Value};
use weft_model::IpFamily;

use crate::{
    collection::{Collection, FrontMap},
    entry::read_endpoint,
    front::FrontKind,
    kernel::{Kernel, KernelError},
    observed::LISTED,
    options::{Counters, TableOptions},
    scratch::{AFFINITY_MASK, COUNT_MASK, List},
};

/// Connections by Service port and endpoint. An element that is replaced begins at zero again.
pub type Connections = BTreeMap<(Arc<str>, SocketAddr), u64>;

/// The state of a table's counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CounterState {
    /// There is no table of ours.
    NoTable,
    /// The table counts nothing.
    Off,
    /// The counts.
    On(Connections),
}

/// Reads the counters of a family.
pub fn connections(kernel: &mut dyn Kernel, family: IpFamily) -> Result<CounterState, KernelError> {
    let Some(structure) = kernel.structure()? else {
        return Ok(CounterState::NoTable);
    };
    if TableOptions::of(&structure).counters == Counters::Off {
        return Ok(CounterState::Off);
    }
    let mut counts = Counts {
        family,
        connections: Connections::new(),
    };
    let mut identities: HashMap<u32, Arc<str>> = HashMap::new();
    for kind in FrontKind::ALL {
        let of = |map| Collection::of(kind, map).name();
        let services = kernel.elements(of(FrontMap::Services))?;
        let local = kernel.elements(of(FrontMap::LocalCounts))?;
        let names: HashMap<Value, Arc<str>> = services
            .iter()
            .filter_map(|element| Some((element.key, element.comment.clone()?)))
            .collect();
        for element in kernel.elements(of(FrontMap::Affinity))? {
            if let (Some(identity), Some(name)) = (number(&element), names.get(&element.key)) {
                identities.insert(identity & AFFINITY_MASK, name.clone());
            }
        }
        let cluster = services.iter().map(|front| (front, List::Cluster));
        let keys: Vec<Value> = cluster
            .chain(local.iter().map(|front| (front, List::Local)))
            .flat_map(|(front, list)| {
                let count = number(front).unwrap_or(0) & COUNT_MASK;
                let numbers = 0..usize::try_from(count).unwrap_or(0);
                numbers.map(move |place| front.key.with_number(list.number(place)))
            })
            .collect();
        let endpoints = if keys.len() <= LISTED {
            kernel.elements(of(FrontMap::Endpoints))?
        } else {
            kernel.get_elements(of(FrontMap::Endpoints), &keys)?
        };
        for element in endpoints {
            let front = element.key.as_bytes();
            let front = front.get(..front.len().saturating_sub(4)).unwrap_or(&[]);
            let name = Value::from_slice(front).and_then(|front| names.get(&front));
            counts.add(name, &element);
        }
    }
    for collection in [
        Collection::StickyEndpoints,
        Collection::StickyLocalEndpoints,
    ] {
        for element in kernel.elements(collection.name())? {
            let identity = element.key.last_number().unwrap_or(0) & AFFINITY_MASK;
            counts.add(identities.get(&identity), &element);
        }
    }
    Ok(CounterState::On(counts.connections))
}

fn number(element: &Element) -> Option<u32> {
    match &element.datum {
        Some(Datum::Value(value)) => value.last_number(),
        _ => None,
    }
}

struct Counts {
    family: IpFamily,
    connections: Connections,
}

impl Counts {
    fn add(&mut self, service: Option<&Arc<str>>, element: &Element) {
        let Some(Datum::Value(value)) = &element.datum else {
            return;
        };
        let endpoint = read_endpoint(self.family, value);
        if let (Some(service), Some(endpoint)) = (service, endpoint) {
            let count = self.connections.entry((service.clone(), endpoint));
            *count.or_default() += element.packets.unwrap_or(0);
        }
    }
}
