//! `GET /openapi.json`, and `GET /docs`: the document of all routes, and a page that shows it.
//!
//! The document is made once, from the routes themselves. What every route has in common, the errors above all, is
//! added here, so that no route can forget it. The page takes nothing from elsewhere.

use super::error::ERRORS;
use crate::app::App;
use axum::{
    Router,
    http::header,
    response::{Html, IntoResponse},
    routing::get,
};
use std::sync::Arc;
use utoipa::{
    OpenApi, PartialSchema, ToSchema,
    openapi::{
        self, Content, Ref, RefOr, Response, ResponseBuilder, SecurityRequirement,
        path::{Operation, PathItem},
        security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};

const PAGE: &str = include_str!("docs/page.html");
const SCRIPT: &str = include_str!("docs/docs.js");
const STYLE: &str = include_str!("docs/docs.css");
/// The component that every error answer refers to.
const ERROR: &str = "Error";
const KEY: &str = "key";

#[derive(OpenApi)]
#[openapi(info(
    title = "Model Garden",
    description = "Fine-tuning jobs, files, models and chat, as OpenAI's SDK asks for them. Fields of our own lie in \
                   the key `garden` of an object."
))]
struct Base;

/// What an error looks like.
#[derive(ToSchema)]
#[schema(as = ErrorBody)]
#[allow(dead_code, reason = "only the document's form of it")]
struct ErrorBody {
    error: ErrorDetails,
}

/// Why a request got no answer.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only the document's form of it")]
struct ErrorDetails {
    message: String,
    r#type: ErrorKind,
    /// The field of the request that is at fault.
    param: Option<String>,
    /// What kind of fault, for programs.
    code: Option<String>,
}

#[derive(ToSchema)]
#[allow(dead_code, reason = "only the document's form of it")]
enum ErrorKind {
    #[schema(rename = "invalid_request_error")]
    Request,
    #[schema(rename = "authentication_error")]
    Authentication,
    #[schema(rename = "permission_error")]
    Permission,
    #[schema(rename = "rate_limit_error")]
    Rate,
    #[schema(rename = "server_error")]
    Server,
}

/// The routes that show the document.
pub(super) fn routes(document: openapi::OpenApi) -> Router<App> {
    let json: Arc<str> = document.to_json().unwrap_or_default().into();
    let send = move || {
        let json = json.to_string();
        async move { ([(header::CONTENT_TYPE, "application/json")], json) }
    };
    Router::new()
        .route("/openapi.json", get(send))
        .route("/docs", get(|| async { Html(PAGE) }))
        .route("/docs/docs.js", get(|| async { asset("text/javascript; charset=utf-8", SCRIPT) }))
        .route("/docs/docs.css", get(|| async { asset("text/css; charset=utf-8", STYLE) }))
}

fn asset(kind: &'static str, text: &'static str) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")], text)
}

/// The document of some routes, with what all of them have in common.
pub(super) fn complete(routes: openapi::OpenApi) -> openapi::OpenApi {
    let mut document = Base::openapi();
    document.merge(routes);
    let components = document.components.get_or_insert_default();
    let mut schemas = vec![(ErrorBody::name().into_owned(), ErrorBody::schema())];
    ErrorBody::schemas(&mut schemas);
    components.schemas.extend(schemas);
    components.responses.insert(ERROR.to_owned(), RefOr::T(error()));
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    components.security_schemes.insert(KEY.to_owned(), RefOr::T(SecurityScheme::Http(bearer)));
    // A key, or none where the server needs none.
    let none = SecurityRequirement::default();
    document.security = Some(vec![SecurityRequirement::new(KEY, [""; 0]), none]);
    for item in document.paths.paths.values_mut() {
        operations(item).for_each(finish);
    }
    document
}

fn error() -> Response {
    let schema = Ref::from_schema_name(ErrorBody::name());
    ResponseBuilder::new()
        .description("The request got no answer.")
        .content("application/json", Content::new(Some(schema)))
        .build()
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let PathItem { get, put, post, delete, head, patch, .. } = item;
    [get, put, post, delete, head, patch].into_iter().flatten()
}

/// Adds the errors that any route may give, and makes the name one of its own.
fn finish(operation: &mut Operation) {
    let faults = ERRORS.iter().map(u16::to_string).chain(["default".to_owned()]);
    for status in faults {
        let fault = || RefOr::Ref(Ref::from_response_name(ERROR));
        operation.responses.responses.entry(status).or_insert_with(fault);
    }
    let tag = operation.tags.iter().flatten().next();
    if let (Some(tag), Some(id)) = (tag, &operation.operation_id) {
        operation.operation_id = Some(format!("{}_{id}", tag.to_lowercase().replace(' ', "_")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::HashSet;

    fn document() -> Value {
        serde_json::to_value(complete(crate::api::routes().into_openapi())).unwrap()
    }

    fn each_reference(value: &Value, see: &mut impl FnMut(&str)) {
        match value {
            Value::Object(map) => {
                map.get("$ref").and_then(Value::as_str).into_iter().for_each(&mut *see);
                map.values().for_each(|value| each_reference(value, see));
            }
            Value::Array(values) => values.iter().for_each(|value| each_reference(value, see)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_name_is_one_route_s() {
        let document = document();
        let mut count = 0;
        each_reference(&document, &mut |reference| {
            count += 1;
            let path = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(path).is_some(), "{reference}");
        });
        assert!(count > 20);
        let mut names = HashSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let name = operation["operationId"].as_str().unwrap();
                assert!(names.insert(name.to_owned()), "{method} {path}: {name} is another's");
                for status in ["400", "401", "403", "404", "405", "413", "429", "default"] {
                    assert!(operation["responses"][status].is_object(), "{method} {path}: {status}");
                }
                let good =
                    operation["responses"].as_object().unwrap().keys().any(|status| status.starts_with('2'));
                assert!(good && operation["tags"][0].is_string(), "{method} {path}");
            }
        }
    }

    #[test]
    fn the_page_asks_nothing_of_others() {
        for text in [PAGE, SCRIPT, STYLE] {
            assert!(!text.contains("http://") && !text.contains("https://") && !text.contains("innerHTML"));
        }
    }
}
