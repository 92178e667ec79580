//! A small web server by hand, which remembers what it was asked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One request: its first line, headers with their names in small letters, and its body.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked {
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value.as_str())
    }
}

/// The server. `/status/N` answers with that status, `/echo/H` with the value of header `H`,
/// `/json` with JSON, `/big` with 10 MB, `/slow` not at all, `/to/PORT` with a redirect to that port.
pub(crate) struct Web {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Web {
    pub(crate) fn start() -> Self {
        Self::serve(None)
    }

    pub(crate) fn with_tls(config: rustls::ServerConfig) -> Self {
        Self::serve(Some(Arc::new(config)))
    }

    fn serve(tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::<Mutex<Vec<Asked>>>::default();
        let seen = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(stream), seen, tls) = (stream, seen.clone(), tls.clone()) else { return };
                std::thread::spawn(move || {
                    let Some(tls) = tls else { return answer(stream, &seen) };
                    let connection = rustls::ServerConnection::new(tls).unwrap();
                    answer(rustls::StreamOwned::new(connection, stream), &seen)
                });
            }
        });
        Self { address, asked }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

/// An error is a client that went away.
fn answer(stream: impl Read + Write, seen: &Mutex<Vec<Asked>>) {
    let mut stream = BufReader::new(stream);
    let _ = converse(&mut stream, seen);
}

fn converse(
    stream: &mut BufReader<impl Read + Write>,
    seen: &Mutex<Vec<Asked>>,
) -> std::io::Result<()> {
    let mut asked = Asked::default();
    let mut line = String::new();
    stream.read_line(&mut line)?;
    asked.line = line.trim_end().to_owned();
    loop {
        line.clear();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        asked.headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let mut body = vec![0; asked.header("content-length").parse().unwrap_or(0)];
    stream.read_exact(&mut body)?;
    asked.body = String::from_utf8(body).unwrap();
    let path = asked.line.split(' ').nth(1).unwrap_or_default().to_owned();
    let (what, rest) = path[1..].split_once('/').unwrap_or((&path[1..], ""));
    let echo = asked.header(rest).to_owned();
    seen.lock().unwrap().push(asked);
    let (status, more, body) = match what {
        "status" => (rest, String::new(), format!("this is {rest}")),
        "echo" => ("200", String::new(), echo),
        "json" => ("200", String::new(), r#"{"settled": 42}"#.to_owned()),
        "big" => ("200", String::new(), "x".repeat(10_000_000)),
        "to" => ("302", format!("location: http://127.0.0.1:{rest}/json\r\n"), String::new()),
        _ => {
            std::thread::sleep(Duration::from_secs(600));
            return Ok(());
        }
    };
    let head = format!(
        "HTTP/1.1 {status} X\r\nconnection: close\r\n{more}content-length: {}\r\n\r\n",
        body.len()
    );
    let stream = stream.get_mut();
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    stream.flush()
}
