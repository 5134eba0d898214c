//! The events of the simulated cluster.

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// A pod is bound and its sandbox created.
    Ask(usize, usize),
    /// Kubelet repeats an ADD that was answered.
    AskAgain(usize, usize),
    /// The ADD of a sandbox comes after its DEL was answered.
    AskLate(usize, usize),
    /// A pod is deleted and its sandbox removed.
    Leave(usize, usize),
    /// A pod is gone, and its DEL was lost.
    Vanish(usize, usize),
    /// The daemon makes its records durable.
    Commit(usize),
    /// The daemon crashes.
    Crash(usize),
    /// The daemon cannot make its records durable.
    FailStore(usize),
    /// The daemon can write again.
    RecoverStore(usize),
    /// The daemon crashes, and its store is unreadable.
    LoseStore(usize),
    /// The machine reboots.
    Reboot(usize),
    /// The daemon observes its config.
    See(usize),
    /// The daemon stops waiting for a response.
    GiveUp(usize),
    /// The daemon sweeps.
    Sweep(usize),
    /// A message arrives, and its response, too.
    Deliver(usize),
    /// A message arrives, and its response is lost.
    DeliverSilently(usize),
    /// A message arrives, and arrives again later.
    Duplicate(usize),
    /// A message is lost.
    Lose(usize),
    /// A controller observes a node's config and the Node.
    SeeConfig(usize, usize),
    /// A controller observes the shards.
    SeeShards(usize),
    /// A controller plans, and sends one of its writes.
    Plan(usize, usize),
    /// The Node object is deleted.
    RemoveNode(usize),
    /// A Node of the same name is created.
    AddNode(usize),
    /// A Node is deleted and recreated while its daemon runs.
    ReplaceNode(usize),
    /// The daemon learns which Node has its name.
    LearnNode(usize),
    /// A node moves to another pool.
    Relabel(usize),
    /// A config is deleted by hand.
    DeleteConfig(usize),
    /// A config is deleted by hand, and its finalizer removed.
    TearConfig(usize),
    /// A controller restarts with an empty cache; its writes are still in flight.
    RestartController(usize),
    /// A controller lists everything.
    List(usize),
    /// Time passes, in seconds.
    Wait(u64),
}
