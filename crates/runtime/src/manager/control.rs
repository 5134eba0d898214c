//! Control socket: starts, stops and restarts the controllers of a running process.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::{
    Router,
    extract::{Path as Segments, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
    routing::post,
};
use parking_lot::Mutex;
use weft_listener::{ConnectionPool, Limits, PrivateSocket, serve};

use super::{
    Component, ComponentRun, ComponentScope, Manager, Phase,
    server::{json, pages},
};

/// Low limits: only operators and their tools connect.
const LIMITS: Limits = Limits::PAGES.with_connections(32);

/// Serves the status pages of a process on a Unix socket, and commands: `POST
/// /debug/controllers/{name}/{start,stop,restart}` answers when the command is done.
///
/// Only our own user and root can open the socket. The TCP port accepts no commands: any web page
/// in a browser on this machine could send them there.
pub struct ControlServer {
    manager: Manager,
    path: PathBuf,
    listener: Mutex<Option<PrivateSocket>>,
}

impl ControlServer {
    /// Binds at once, so that an unusable path is a startup error.
    pub fn bind(manager: &Manager, path: &Path) -> io::Result<Self> {
        let listener = PrivateSocket::bind(path).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?;
        Ok(Self {
            manager: manager.clone(),
            path: path.to_owned(),
            listener: Mutex::new(Some(listener)),
        })
    }
}

impl Component for ControlServer {
    fn name(&self) -> &'static str {
        "control-server"
    }

    fn phase(&self) -> Phase {
        Phase::Server
    }

    fn run(self: Arc<Self>, scope: ComponentScope) -> ComponentRun {
        Box::pin(async move {
            let bound = self.listener.lock().take();
            let listener = match bound {
                Some(listener) => listener,
                None => PrivateSocket::bind(&self.path)?,
            };
            tracing::info!(socket = %self.path.display(), "control socket listening");
            scope.ready();
            let pool = ConnectionPool::new("control", LIMITS);
            serve(
                listener,
                &pool,
                router(self.manager.clone()),
                scope.stopped(),
            )
            .await;
            Ok(())
        })
    }
}

fn router(manager: Manager) -> Router {
    pages()
        .route("/debug/controllers/{name}/{command}", post(apply_command))
        .with_state(manager)
}

async fn apply_command(
    State(manager): State<Manager>,
    Segments((name, command)): Segments<(String, String)>,
) -> Response {
    let Some(controller) = manager.controller(&name) else {
        let all = manager.controllers();
        let names: Vec<&str> = all.iter().map(crate::ControllerHandle::name).collect();
        let text = format!(
            "controller {name:?} not found: expected one of {}\n",
            names.join(", ")
        );
        return (StatusCode::NOT_FOUND, text).into_response();
    };
    match command.as_str() {
        "start" => controller.start(),
        "stop" => drop(controller.stop().await),
        "restart" => drop(controller.restart().await),
        _ => {
            let text = "unknown command: expected start, stop or restart\n";
            return (StatusCode::NOT_FOUND, text).into_response();
        }
    }
    tracing::info!(controller = name, command, "controller command applied");
    json(&controller.info())
}
