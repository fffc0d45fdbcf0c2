//! HTTP/1.1 of servers in tests: requests with a body of known length, answers of known length or
//! in chunks.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};

use serde_json::Value;

/// A connection of a client.
#[derive(Debug)]
pub struct Connection<S = TcpStream> {
    reader: BufReader<S>,
}

/// A request.
#[derive(Debug, Default)]
pub struct Request {
    /// Method.
    pub method: String,
    /// Path, without the query.
    pub path: String,
    /// Query, without the question mark.
    pub query: String,
    /// Value of the header `Authorization`.
    pub authorization: Option<String>,
    /// Body.
    pub body: Vec<u8>,
}

impl Request {
    /// Returns the value of a parameter of the query.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let pairs = self
            .query
            .split('&')
            .filter_map(|pair| pair.split_once('='));
        let mut values = pairs.filter(|(key, _)| *key == name);
        values.next().map(|(_, value)| decoded(value))
    }

    /// Returns whether a parameter of the query is `true`.
    pub fn is_set(&self, name: &str) -> bool {
        self.parameter(name).is_some_and(|value| value == "true")
    }
}

/// Decodes the characters that a field selector and a continue token have.
fn decoded(text: &str) -> String {
    text.replace("%3D", "=")
        .replace("%2C", ",")
        .replace("%2F", "/")
        .replace("%3A", ":")
}

impl<S: Read> Connection<S> {
    /// Wraps a stream of which nothing has been read.
    pub fn new(stream: S) -> Self {
        Self {
            reader: BufReader::new(stream),
        }
    }

    /// Reads a request; `None` at the end of the connection.
    pub fn request(&mut self) -> io::Result<Option<Request>> {
        let line = self.line()?;
        let mut words = line.split(' ');
        let (Some(method), Some(target)) = (words.next(), words.next()) else {
            return Ok(None);
        };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut request = Request {
            method: method.to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
            ..Request::default()
        };
        let mut length = 0;
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else {
                break;
            };
            match name.to_lowercase().as_str() {
                "content-length" => length = value.trim().parse().unwrap_or_default(),
                "authorization" => request.authorization = Some(value.trim().to_owned()),
                _ => {}
            }
        }
        request.body.resize(length, 0);
        self.reader.read_exact(&mut request.body)?;
        Ok(Some(request))
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

impl<S: Write> Connection<S> {
    /// Sends an answer of known length.
    pub fn answer(
        &mut self,
        status: u16,
        retry_after: Option<u32>,
        body: &Value,
    ) -> io::Result<()> {
        let body = body.to_string();
        self.answer_text(status, retry_after, &body)
    }

    /// Sends an answer with this text.
    pub fn answer_text(
        &mut self,
        status: u16,
        retry_after: Option<u32>,
        body: &str,
    ) -> io::Result<()> {
        let retry = retry_after.map(|seconds| format!("Retry-After: {seconds}\r\n"));
        let head = format!(
            "HTTP/1.1 {status} Status\r\nContent-Type: application/json\r\n{}Content-Length: {}\r\n\r\n",
            retry.unwrap_or_default(),
            body.len()
        );
        self.send(format!("{head}{body}").as_bytes())
    }

    /// Begins an answer in chunks.
    pub fn begin_chunks(&mut self) -> io::Result<()> {
        self.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    }

    /// Sends a line as a chunk.
    pub fn chunk(&mut self, line: &str) -> io::Result<()> {
        self.send(format!("{:x}\r\n{line}\n\r\n", line.len() + 1).as_bytes())
    }

    /// Ends an answer in chunks.
    pub fn end_chunks(&mut self) -> io::Result<()> {
        self.send(b"0\r\n\r\n")
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.reader.get_mut().write_all(bytes)
    }
}

impl Connection<TcpStream> {
    /// Sends the first half of a chunk, and closes the connection.
    ///
    /// # Errors
    ///
    /// Always: the connection is of no use any more.
    pub fn half_chunk(&mut self, line: &str) -> io::Result<()> {
        let half = &line[..line.len() / 2];
        self.send(format!("{:x}\r\n{half}", line.len() + 1).as_bytes())?;
        self.close();
        Err(io::ErrorKind::ConnectionAborted.into())
    }

    /// Closes the connection.
    pub fn close(&mut self) {
        // It fails if the client has closed it.
        let _result = self.reader.get_ref().shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_request_is_read_with_its_body_from_any_stream() -> io::Result<()> {
        let (mut client, server) = UnixStream::pair()?;
        client.write_all(
            b"POST /NetworkDriver.Join HTTP/1.1\r\nHost: plugin\r\nContent-Length: 2\r\n\r\n{}",
        )?;
        drop(client);
        let mut connection = Connection::new(&server);
        let request = connection.request()?.unwrap_or_default();
        assert_eq!(request.path, "/NetworkDriver.Join");
        assert_eq!(request.body, b"{}");
        assert!(connection.request()?.is_none());
        Ok(())
    }
}
