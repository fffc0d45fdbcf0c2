//! The subset of HTTP/1.1 that one request and one response per connection need. Independent of the
//! bodies' content and of the transport.
//!
//! The peer is an agent that runs as root; the parser does not trust it nevertheless: all sizes are
//! bounded, and no input causes a panic.

use std::io::{self, BufRead, BufReader, Read};

/// Maximum size of a response's head, and of a line of a chunked body, in bytes.
pub const MAX_HEAD: usize = 16 << 10;

/// Maximum size of a response's body in bytes: some ten thousand attachments.
pub const MAX_BODY: usize = 32 << 20;

/// Why a response could not be parsed.
#[derive(Debug, thiserror::Error)]
pub enum ResponseError {
    /// The connection failed, or was closed before the end of the response.
    #[error("reading the response")]
    Io(#[from] io::Error),
    /// The response is not HTTP/1.1, or uses a feature that is not implemented here.
    #[error("not an HTTP response: {0}")]
    Malformed(&'static str),
    /// The response is larger than [`MAX_HEAD`] or [`MAX_BODY`].
    #[error("the response's {what} is longer than {limit} bytes")]
    TooLong {
        /// `head` or `body`.
        what: &'static str,
        /// Maximum size in bytes.
        limit: usize,
    },
}

/// Returns the bytes of a request with `Connection: close`.
pub(crate) fn request(method: &str, path: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "{method} {path} HTTP/1.1\r\nHost: viaduct\r\nConnection: close\r\nAccept: application/json\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// Reads one response: its status code and its body.
pub(crate) fn read_response(stream: impl Read) -> Result<(u16, Vec<u8>), ResponseError> {
    let mut reader = BufReader::new(stream);
    let mut budget = MAX_HEAD;
    loop {
        let status = status_code(&line(&mut reader, &mut budget)?)?;
        let framing = headers(&mut reader, &mut budget)?;
        // 1xx is an interim response: the final one follows.
        if status >= 200 {
            return Ok((status, body(&mut reader, status, framing)?));
        }
    }
}

/// Reads one response whose body may be endless, and calls `each` with every line until it returns
/// `false`. The body of an error response is returned as a whole.
pub(crate) fn read_lines(
    stream: impl Read,
    each: &mut dyn FnMut(&str) -> bool,
) -> Result<(u16, Vec<u8>), ResponseError> {
    let mut reader = BufReader::new(stream);
    let mut budget = MAX_HEAD;
    let status = status_code(&line(&mut reader, &mut budget)?)?;
    let framing = headers(&mut reader, &mut budget)?;
    if framing != Framing::Chunked || !(200..300).contains(&status) {
        return Ok((status, body(&mut reader, status, framing)?));
    }
    let mut unread = Vec::new();
    while chunk(&mut reader, &mut unread)? {
        while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = unread.drain(..=end).collect();
            let text = std::str::from_utf8(&line[..end]);
            let text = text.map_err(|_| ResponseError::Malformed("a line that is not text"))?;
            if !each(text) {
                return Ok((status, Vec::new()));
            }
        }
    }
    Ok((status, Vec::new()))
}

/// How the length of the body is determined (RFC 9112, section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

fn status_code(line: &str) -> Result<u16, ResponseError> {
    let mut words = line.split(' ');
    let version = words.next().unwrap_or_default();
    if !version.starts_with("HTTP/1.") {
        return Err(ResponseError::Malformed("no HTTP/1 status line"));
    }
    let code = words.next().and_then(|word| word.parse().ok());
    code.filter(|code| (100..600).contains(code))
        .ok_or(ResponseError::Malformed("no status code"))
}

fn headers(reader: &mut impl BufRead, budget: &mut usize) -> Result<Framing, ResponseError> {
    let mut framing = Framing::UntilClose;
    loop {
        let line = line(reader, budget)?;
        if line.is_empty() {
            return Ok(framing);
        }
        let Some((name, value)) = line.split_once(':') else {
            return Err(ResponseError::Malformed("a header without a colon"));
        };
        let value = value.trim();
        if name.eq_ignore_ascii_case("transfer-encoding") {
            if !value.eq_ignore_ascii_case("chunked") {
                return Err(ResponseError::Malformed("unknown transfer encoding"));
            }
            framing = Framing::Chunked;
        } else if name.eq_ignore_ascii_case("content-length") && framing != Framing::Chunked {
            let length = value.parse();
            framing = Framing::Length(length.map_err(|_| ResponseError::Malformed("bad length"))?);
        }
    }
}

fn body(
    reader: &mut impl BufRead,
    status: u16,
    framing: Framing,
) -> Result<Vec<u8>, ResponseError> {
    let mut body = Vec::new();
    match framing {
        _ if status == 204 || status == 304 => {}
        Framing::Length(length) => append(reader, length, &mut body)?,
        Framing::Chunked => chunks(reader, &mut body)?,
        Framing::UntilClose => {
            reader.take(MAX_BODY as u64 + 1).read_to_end(&mut body)?;
            check_body(body.len())?;
        }
    }
    Ok(body)
}

fn chunks(reader: &mut impl BufRead, body: &mut Vec<u8>) -> Result<(), ResponseError> {
    while chunk(reader, body)? {}
    Ok(())
}

/// Appends the next chunk; returns `false` at the last chunk.
fn chunk(reader: &mut impl BufRead, body: &mut Vec<u8>) -> Result<bool, ResponseError> {
    let size = line(reader, &mut { MAX_HEAD })?;
    let digits = size.split(';').next().unwrap_or_default().trim();
    let size = usize::from_str_radix(digits, 16);
    let size = size.map_err(|_| ResponseError::Malformed("bad chunk size"))?;
    if size == 0 {
        // Trailers may follow. They need not be read: the connection is not used again.
        return Ok(false);
    }
    append(reader, size, body)?;
    if !line(reader, &mut { MAX_HEAD })?.is_empty() {
        return Err(ResponseError::Malformed("a chunk longer than announced"));
    }
    Ok(true)
}

/// Reads exactly `length` bytes; allocates only for bytes that have arrived, not for the announced
/// length.
fn append(reader: &mut impl Read, length: usize, body: &mut Vec<u8>) -> Result<(), ResponseError> {
    check_body(body.len().saturating_add(length))?;
    let got = reader.take(length as u64).read_to_end(body)?;
    if got == length {
        Ok(())
    } else {
        Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())
    }
}

fn check_body(length: usize) -> Result<(), ResponseError> {
    if length <= MAX_BODY {
        return Ok(());
    }
    Err(ResponseError::TooLong {
        what: "body",
        limit: MAX_BODY,
    })
}

/// Reads one line without its line ending, and subtracts its length from `budget`.
fn line(reader: &mut impl BufRead, budget: &mut usize) -> Result<String, ResponseError> {
    let mut bytes = Vec::new();
    let got = reader.take(*budget as u64).read_until(b'\n', &mut bytes)?;
    if bytes.pop() != Some(b'\n') {
        return Err(if got == *budget {
            ResponseError::TooLong {
                what: "head",
                limit: MAX_HEAD,
            }
        } else {
            io::Error::from(io::ErrorKind::UnexpectedEof).into()
        });
    }
    *budget -= got;
    if bytes.last() == Some(&b'\r') {
        bytes.pop();
    }
    String::from_utf8(bytes).map_err(|_| ResponseError::Malformed("a header that is not text"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<(u16, String), ResponseError> {
        let (status, body) = read_response(text.as_bytes())?;
        Ok((status, String::from_utf8(body).unwrap()))
    }

    #[test]
    fn a_body_ends_where_its_length_says() {
        let text = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}garbage";
        assert_eq!(read(text).unwrap(), (200, "{}".into()));
    }

    #[test]
    fn a_chunked_body_is_put_together() {
        let text = "HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n";
        assert_eq!(read(text).unwrap(), (500, "abc0123456789".into()));
    }

    #[test]
    fn a_body_without_a_length_ends_with_the_connection() {
        assert_eq!(
            read("HTTP/1.0 200 OK\r\n\r\nall").unwrap(),
            (200, "all".into())
        );
    }

    #[test]
    fn an_interim_response_is_not_the_response() {
        let text =
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\nContent-Length: 9\r\n\r\n";
        assert_eq!(read(text).unwrap(), (204, String::new()));
    }

    #[test]
    fn a_connection_that_closes_early_is_an_error_and_not_a_short_answer() {
        for text in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab",
        ] {
            assert!(
                matches!(read(text), Err(ResponseError::Io(_))),
                "{text:?} must not be accepted"
            );
        }
    }

    #[test]
    fn sizes_are_bounded_before_anything_is_allocated() {
        let huge = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", usize::MAX);
        assert!(matches!(read(&huge), Err(ResponseError::TooLong { .. })));
        let chunk = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n";
        assert!(matches!(read(chunk), Err(ResponseError::TooLong { .. })));
        let head = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(MAX_HEAD));
        assert!(matches!(read(&head), Err(ResponseError::TooLong { .. })));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes: Vec<u8>) {
            let _ = read_response(bytes.as_slice());
        }

        #[test]
        fn no_bytes_behind_a_good_start_make_the_parser_panic(
            start in prop::sample::select(vec![
                "HTTP/1.1 200 OK\r\n",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                "HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n",
            ]),
            rest: Vec<u8>,
        ) {
            let _ = read_response([start.as_bytes(), &rest].concat().as_slice());
        }
    }
}
