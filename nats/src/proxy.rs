//! A small TCP proxy between a client and a server: for tests that need a bad network.
//!
//! It can hold back what flows in one direction, delay it, cut all connections, and refuse new
//! ones. Holding back the server's answers and then cutting loses them, as a real network does:
//! what was done is done, and nobody was told.
//!
//! *Invariant: what is forwarded is forwarded whole and in order*; bytes are only ever lost with
//! their connection.

use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// Which way bytes flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client: PubAcks, deliveries, everything a client waits for.
    ToClient,
}

#[derive(Debug, Clone, Copy, Default)]
struct Weather {
    to_server_held: bool,
    to_client_held: bool,
    delay: Duration,
    refusing: bool,
}

impl Weather {
    fn holds(&self, direction: Direction) -> bool {
        match direction {
            Direction::ToServer => self.to_server_held,
            Direction::ToClient => self.to_client_held,
        }
    }
}

/// A proxy on a free port of the loopback address. It ends, with all its connections, when dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    weather: watch::Sender<Weather>,
    /// Cancelled to cut the connections that exist.
    line: std::sync::Arc<Mutex<CancellationToken>>,
    _ends_all: DropGuard,
}

impl Proxy {
    /// A proxy to `target` (`host:port`), which need not answer yet.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(target: impl Into<String>) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (weather, _) = watch::channel(Weather::default());
        let end = CancellationToken::new();
        let line = std::sync::Arc::new(Mutex::new(end.child_token()));
        let accepting = accept(listener, target.into(), weather.clone(), line.clone());
        tokio::spawn(end.clone().run_until_cancelled_owned(accepting));
        Ok(Self { address, weather, line, _ends_all: end.drop_guard() })
    }

    /// Host and port to connect to.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Where a NATS client connects.
    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Holds back what flows in `direction` from now on; connections stay open.
    pub fn hold(&self, direction: Direction) {
        self.set(direction, true);
    }

    /// Lets it flow again, what was held back first.
    pub fn release(&self, direction: Direction) {
        self.set(direction, false);
    }

    /// Holds each piece for `delay` before it is forwarded; zero: none. A piece at a time: this
    /// bounds the throughput, too.
    pub fn delay(&self, delay: Duration) {
        self.weather.send_modify(|weather| weather.delay = delay);
    }

    /// Cuts all connections, with all that is held back. New ones are taken at once.
    pub fn cut(&self) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.cancel();
        *line = CancellationToken::new();
    }

    /// Cuts all connections and closes new ones as soon as they are made, until [`Proxy::heal`].
    pub fn refuse(&self) {
        self.weather.send_modify(|weather| weather.refusing = true);
        self.cut();
    }

    /// Takes new connections, holds nothing back and delays nothing.
    pub fn heal(&self) {
        self.weather.send_replace(Weather::default());
    }

    fn set(&self, direction: Direction, held: bool) {
        self.weather.send_modify(|weather| match direction {
            Direction::ToServer => weather.to_server_held = held,
            Direction::ToClient => weather.to_client_held = held,
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
    }
}

async fn accept(
    listener: TcpListener,
    target: String,
    weather: watch::Sender<Weather>,
    line: std::sync::Arc<Mutex<CancellationToken>>,
) {
    let connections = TaskTracker::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { return };
        if weather.borrow().refusing {
            continue;
        }
        let line = line.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let pair = carry(client, target.clone(), weather.subscribe(), line.clone());
        connections.spawn(line.run_until_cancelled_owned(pair));
    }
}

async fn carry(
    client: TcpStream,
    target: String,
    weather: watch::Receiver<Weather>,
    line: CancellationToken,
) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = pump(from_client, to_server, Direction::ToServer, weather.clone(), &line) => {}
        () = pump(from_server, to_client, Direction::ToClient, weather, &line) => {}
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    direction: Direction,
    mut weather: watch::Receiver<Weather>,
    line: &CancellationToken,
) {
    let mut piece = vec![0; 64 << 10];
    loop {
        let Ok(size @ 1..) = from.read(&mut piece).await else { return };
        let delay = weather.borrow().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if weather.wait_for(|weather| !weather.holds(direction)).await.is_err() {
            return;
        }
        // Cut and healed in one breath: what was held back is lost all the same.
        if line.is_cancelled() {
            return;
        }
        let Some(bytes) = piece.get(..size) else { return };
        if to.write_all(bytes).await.is_err() {
            return;
        }
    }
}
