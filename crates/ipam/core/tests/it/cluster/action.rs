//! The words for what happens in a cluster.

/// What may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// A pod is bound and its sandbox made.
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
    /// The daemon dies.
    Crash(usize),
    /// The daemon cannot make its records durable.
    FailStore(usize),
    /// The daemon can write again.
    RecoverStore(usize),
    /// The daemon dies, and its store is unreadable.
    LoseStore(usize),
    /// The machine starts again.
    Reboot(usize),
    /// The daemon sees its config.
    See(usize),
    /// The daemon stops waiting for an answer.
    GiveUp(usize),
    /// The daemon looks for leaks.
    Sweep(usize),
    /// Mail arrives, and its answer, too.
    Deliver(usize),
    /// Mail arrives, and its answer is lost.
    DeliverSilently(usize),
    /// Mail arrives, and arrives again later.
    Duplicate(usize),
    /// Mail is lost.
    Lose(usize),
    /// A controller sees a node's config, and the Node.
    SeeConfig(usize, usize),
    /// A controller sees the shards.
    SeeShards(usize),
    /// A controller plans, and sends one of its writes.
    Plan(usize, usize),
    /// The Node object is deleted.
    RemoveNode(usize),
    /// A Node of the same name is made.
    AddNode(usize),
    /// A Node is deleted and made again, and its daemon lives through it.
    ReplaceNode(usize),
    /// The daemon hears which Node has its name.
    LearnNode(usize),
    /// A node becomes another pool's.
    Relabel(usize),
    /// A config is deleted by hand.
    DeleteConfig(usize),
    /// A config is deleted by hand, and its finalizer taken off.
    TearConfig(usize),
    /// A controller starts again, with nothing in its cache; what it has sent is still on its way.
    RestartController(usize),
    /// A controller lists everything.
    List(usize),
    /// Time passes: seconds.
    Wait(u64),
}
