//! What every request has to pass, and what every answer carries.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use floodway_switch::api::control::Refusal;

use super::token::Token;

/// Nothing from elsewhere, no inline code, no frames around it, no forms, and nothing that a script could write HTML with.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Refuses what is not a GET for this machine.
pub async fn every_request(request: Request, next: Next) -> Response {
    let mut response = if request.method() != Method::GET {
        let mut response = refuse(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered here");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET"));
        response
    } else if !is_for_this_machine(request.headers()) {
        refuse(
            StatusCode::MISDIRECTED_REQUEST,
            "Host must be localhost, 127.0.0.1 or [::1]; a request by another name may come from another site",
        )
    } else {
        next.run(request).await
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Refuses who does not know the token, where there is one.
pub async fn what_is_secret(
    State(token): State<Option<Token>>,
    request: Request,
    next: Next,
) -> Response {
    if token.is_none_or(|token| said_token(request.uri()).is_some_and(|said| token.is(said))) {
        next.run(request).await
    } else {
        refuse(StatusCode::FORBIDDEN, "open the URL that floodway web has printed: it has a token")
    }
}

/// An answer with a code and a reason.
pub fn refuse(code: StatusCode, reason: &str) -> Response {
    (code, Json(Refusal { error: reason.to_owned() })).into_response()
}

/// The token in the query: hexadecimal digits, of which none is ever escaped.
fn said_token(uri: &Uri) -> Option<&str> {
    uri.query()?.split('&').find_map(|field| field.strip_prefix("token="))
}

/// Returns `true` if the only `Host` is a name or address of the loopback interface, with any port: one that ssh forwards has another.
fn is_for_this_machine(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let Ok(host) = host.to_str() else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    ["localhost", "127.0.0.1", "[::1]"].iter().any(|known| name.eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_loopback_interface_are_this_machine() {
        let is = |hosts: &[&str]| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(header::HOST, HeaderValue::from_str(host).unwrap());
            }
            is_for_this_machine(&headers)
        };
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:9469", "[::1]", "[::1]:1"]
        {
            assert!(is(&[host]), "{host}");
        }
        for host in
            ["", ":80", "evil.example", "localhost.evil.example:80", "127.0.0.1.evil.example"]
        {
            assert!(!is(&[host]), "{host}");
        }
        assert!(!is(&["127.0.0.2"]) && !is(&["::1"]) && !is(&["localhost:a"]));
        assert!(!is(&[]) && !is(&["localhost", "localhost"]));
    }

    #[test]
    fn the_token_is_a_field_of_the_query() {
        let said = |uri: &'static str| said_token(&Uri::from_static(uri)).map(str::to_owned);
        assert_eq!(said("/v1/stream?port=a&token=abc").as_deref(), Some("abc"));
        assert_eq!(said("/v1/stream?token="), Some(String::new()));
        assert_eq!((said("/v1/stream?xtoken=abc"), said("/v1/stream")), (None, None));
    }
}
