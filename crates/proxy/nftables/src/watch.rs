//! Counts changes that other processes make to our tables.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use weft_host::{
    NetlinkError,
    nftables::{Listener, ListenerFilter, Notice},
};
use weft_model::IpFamily;

use crate::program::TABLE;

/// Shared by the backends of all families of a process.
#[derive(Clone, Default)]
pub struct Watch(Arc<Shared>);

type OnChange = Box<dyn Fn(IpFamily) + Send>;

#[derive(Default)]
struct Shared {
    /// Port IDs of the sockets whose changes are our own, by family.
    own: RwLock<[Option<u32>; 2]>,
    /// The filter of the listening socket.
    filter: Mutex<Option<ListenerFilter>>,
    changes: [AtomicU64; 2],
    is_listening: AtomicBool,
    on_change: Mutex<Option<OnChange>>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Watch {
    /// Nothing is counted until [`listen`](Self::listen) is called.
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls this whenever another process changed a table of ours.
    pub fn on_change(&self, call: impl Fn(IpFamily) + Send + 'static) {
        let mut on_change = self.0.on_change.lock();
        *on_change = Some(Box::new(call));
    }

    /// Changes made by this socket, which takes the place of the family's last one, are not counted.
    pub(crate) fn ignore(&self, family: IpFamily, port: u32) {
        {
            let mut own = self.0.own.write();
            own[place(family)] = Some(port);
        }
        self.update_filter();
    }

    /// Makes the kernel drop notifications of our own changes. If it cannot, they are received and
    /// ignored.
    fn update_filter(&self) {
        let filter = self.0.filter.lock();
        let own = *self.0.own.read();
        let ports: Vec<u32> = own.into_iter().flatten().collect();
        if let Some(Err(error)) = filter.as_ref().map(|filter| filter.ignore(&ports)) {
            tracing::warn!(%error, "cannot filter nftables notifications");
        }
    }

    /// The number of foreign changes. `None` if they cannot be counted.
    pub(crate) fn foreign_changes(&self, family: IpFamily) -> Option<u64> {
        let is_listening = self.0.is_listening.load(Ordering::Acquire);
        is_listening.then(|| self.counter(family).load(Ordering::Acquire))
    }

    fn counter(&self, family: IpFamily) -> &AtomicU64 {
        &self.0.changes[place(family)]
    }

    /// Opens a socket in the calling thread's network namespace, whose notifications are to be
    /// received by [`Notifications::receive`].
    pub fn listen(&self) -> Result<Notifications, NetlinkError> {
        let listener = Listener::open()?;
        *self.0.filter.lock() = Some(listener.filter()?);
        self.update_filter();
        self.0.is_listening.store(true, Ordering::Release);
        Ok(Notifications {
            listener,
            watch: self.clone(),
        })
    }

    fn count(&self, family: IpFamily) {
        self.counter(family).fetch_add(1, Ordering::AcqRel);
        let on_change = self.0.on_change.lock();
        if let Some(call) = &*on_change {
            call(family);
        }
    }
}

fn place(family: IpFamily) -> usize {
    match family {
        IpFamily::V4 => 0,
        IpFamily::V6 => 1,
    }
}

/// The receiving end of a [`Watch`].
#[derive(Debug)]
pub struct Notifications {
    listener: Listener,
    watch: Watch,
}

impl Notifications {
    /// Waits for notifications for at most this long, and counts those that are foreign.
    pub fn receive(&mut self, patience: Duration) -> Result<(), NetlinkError> {
        let watch = &self.watch;
        let is_own = |port: u32| {
            let own = watch.0.own.read();
            own.contains(&Some(port))
        };
        self.listener
            .wait(patience, &is_own, &mut |notice| match notice {
                Notice::Changed { family, table } if table == TABLE => watch.count(family),
                Notice::Changed { .. } => {}
                Notice::Lost => IpFamily::ALL.into_iter().for_each(|f| watch.count(f)),
            })?;
        Ok(())
    }
}

impl Drop for Notifications {
    fn drop(&mut self) {
        self.watch.0.is_listening.store(false, Ordering::Release);
    }
}
