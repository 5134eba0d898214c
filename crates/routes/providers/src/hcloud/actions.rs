//! Waits for Hetzner actions to end, polled in batches.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::Instant,
};
use weft_routes::ProviderError;

use super::{
    api::{Api, Purpose},
    failure,
    rate::next_call_after,
    wire::{self, ActionStatus},
};
use crate::Answer;

/// Number of actions in one poll.
const BATCH: usize = 25;

/// Waiters for actions. One task polls all of them together, and ends with this value.
#[derive(Debug)]
pub(super) struct Actions {
    waits: mpsc::UnboundedSender<Waiter>,
    task: JoinHandle<()>,
    timeout: Duration,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    purpose: Purpose,
    deadline: Instant,
    done: oneshot::Sender<Answer<()>>,
}

impl Actions {
    pub(super) fn start(api: Arc<Api>, interval: Duration, timeout: Duration) -> Self {
        let (waits, asked) = mpsc::unbounded_channel();
        let poller = Poller {
            api,
            interval,
            open: Vec::new(),
        };
        Self {
            waits,
            task: tokio::spawn(poller.run(asked)),
            timeout,
        }
    }

    /// Waits for the end of an action that was just started.
    pub(super) async fn wait(&self, purpose: Purpose, action: wire::Action) -> Answer<()> {
        if let Some(result) = ending(purpose, &action) {
            return Answer::from(result);
        }
        let (done, ended) = oneshot::channel();
        let wait = Waiter {
            id: action.id,
            purpose,
            deadline: Instant::now() + self.timeout,
            done,
        };
        let uncertain = Answer::from(Err(ProviderError::Uncertain));
        match self.waits.send(wait) {
            Ok(()) => ended.await.unwrap_or(uncertain),
            Err(_) => uncertain,
        }
    }
}

impl Drop for Actions {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn ending(purpose: Purpose, action: &wire::Action) -> Option<Result<(), ProviderError>> {
    match action.status {
        ActionStatus::Running => None,
        ActionStatus::Success => Some(Ok(())),
        ActionStatus::Error => {
            let error = action.error.as_ref();
            let classify = |problem| failure::classify_action(problem, purpose);
            Some(Err(error.map_or(ProviderError::Uncertain, classify)))
        }
    }
}

struct Poller {
    api: Arc<Api>,
    interval: Duration,
    open: Vec<Waiter>,
}

impl Poller {
    async fn run(mut self, mut asked: mpsc::UnboundedReceiver<Waiter>) {
        let mut pause = self.interval;
        loop {
            if self.open.is_empty() {
                let Some(wait) = asked.recv().await else {
                    return;
                };
                self.open.push(wait);
                pause = self.interval;
            }
            // A waiter's deadline comes before the pause that the rate limit asks for.
            let until = self.open.iter().map(|wait| wait.deadline).min();
            let pause_ends = Instant::now() + pause;
            tokio::time::sleep_until(until.map_or(pause_ends, |until| until.min(pause_ends))).await;
            while let Ok(wait) = asked.try_recv() {
                self.open.push(wait);
            }
            self.expire();
            pause = self.ask().await;
        }
    }

    /// Answers waiters whose deadline has passed, and drops those whose caller is gone.
    fn expire(&mut self) {
        let now = Instant::now();
        let waits = std::mem::take(&mut self.open);
        for wait in waits.into_iter().filter(|wait| !wait.done.is_closed()) {
            if now >= wait.deadline {
                let uncertain = Answer::from(Err(ProviderError::Uncertain));
                wait.done.send(uncertain).ok();
            } else {
                self.open.push(wait);
            }
        }
    }

    /// Polls all open actions and answers those that ended. Returns the pause before the next poll.
    async fn ask(&mut self) -> Duration {
        let mut pause = self.interval;
        let mut left = Vec::new();
        let mut rest = std::mem::take(&mut self.open).into_iter();
        loop {
            let batch: Vec<Waiter> = rest.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                break;
            }
            let ids: Vec<String> = batch.iter().map(|wait| format!("id={}", wait.id)).collect();
            let path = format!("actions?{}&per_page={BATCH}", ids.join("&"));
            let answer = self
                .api
                .read::<wire::ActionsReply>(Purpose::Poll, &path)
                .await;
            if let Err(ProviderError::RateLimited { after: Some(after) }) = answer.result {
                pause = pause.max(after);
            }
            // The next call would be refused.
            if let Some(rate) = answer.rate.filter(|rate| rate.remaining == 0) {
                pause = pause.max(next_call_after(rate));
            }
            left.extend(complete(batch, &answer));
        }
        self.open = left;
        pause
    }
}

/// Answers the waiters whose action ended or is unknown to the API; returns the others.
fn complete(waits: Vec<Waiter>, answer: &Answer<wire::ActionsReply>) -> Vec<Waiter> {
    let mut left = Vec::new();
    for wait in waits {
        let result = match &answer.result {
            Ok(reply) => match reply.actions.iter().find(|action| action.id == wait.id) {
                Some(action) => ending(wait.purpose, action),
                None => Some(Err(ProviderError::Uncertain)),
            },
            Err(ProviderError::Forbidden) => Some(Err(ProviderError::Uncertain)),
            // The poll failed, not the action.
            Err(_) => None,
        };
        match result {
            Some(result) => {
                let rate = answer.rate;
                // The caller may be gone.
                wait.done.send(Answer { result, rate }).ok();
            }
            None => left.push(wait),
        }
    }
    left
}
