//! The routes of webhook endpoints, as OpenAI's SDK calls them (`client.webhooks`).

use super::{
    error::{ApiError, ErrorBody},
    extract::{Json, Path, Query},
};
use crate::webhook::{Change, Endpoint, EndpointError, EventKind, Webhooks};
use axum::extract::{FromRef, State};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// The routes, for any state that holds the webhooks.
pub(crate) fn routes<S>() -> OpenApiRouter<S>
where
    S: Clone + Send + Sync + 'static,
    Webhooks: FromRef<S>,
{
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(get, update, delete))
        .routes(routes!(rotate_secret))
        .routes(routes!(test))
        .routes(routes!(event_types))
}

/// An address that gets events.
#[derive(Debug, Serialize, ToSchema)]
struct WebhookEndpoint {
    id: String,
    #[schema(example = "webhook_endpoint")]
    object: &'static str,
    name: String,
    url: String,
    event_types: Vec<EventKind>,
    created_at: i64,
    updated_at: i64,
    /// The last characters of the signing secret.
    signing_secret_hint: String,
}

impl From<Endpoint> for WebhookEndpoint {
    fn from(endpoint: Endpoint) -> Self {
        Self {
            object: "webhook_endpoint",
            signing_secret_hint: endpoint.secret.hint(),
            id: endpoint.id,
            name: endpoint.name,
            url: endpoint.url,
            event_types: endpoint.event_types,
            created_at: endpoint.created_at,
            updated_at: endpoint.updated_at,
        }
    }
}

/// An endpoint with its secret, which is shown this once.
#[derive(Debug, Serialize, ToSchema)]
struct WebhookEndpointWithSecret {
    #[serde(flatten)]
    endpoint: WebhookEndpoint,
    #[schema(example = "whsec_...")]
    signing_secret: String,
}

impl From<Endpoint> for WebhookEndpointWithSecret {
    fn from(endpoint: Endpoint) -> Self {
        Self { signing_secret: endpoint.secret.clone().into(), endpoint: endpoint.into() }
    }
}

/// A page of endpoints, newest first.
#[derive(Debug, Serialize, ToSchema)]
struct WebhookEndpointList {
    #[schema(example = "list")]
    object: &'static str,
    data: Vec<WebhookEndpoint>,
    #[schema(required)]
    first_id: Option<String>,
    #[schema(required)]
    last_id: Option<String>,
    has_more: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CreateWebhookEndpoint {
    #[schema(min_length = 1, max_length = 128)]
    name: String,
    /// Where events are posted: https or http. A server that others can use takes public addresses only.
    #[schema(max_length = 2048)]
    url: String,
    #[schema(min_items = 1)]
    event_types: Vec<EventKind>,
}

/// What is absent stays as it is.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct UpdateWebhookEndpoint {
    #[schema(min_length = 1, max_length = 128)]
    name: Option<String>,
    #[schema(max_length = 2048)]
    url: Option<String>,
    #[schema(min_items = 1)]
    event_types: Option<Vec<EventKind>>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RotateWebhookSecret {
    /// Whether the old secret signs too for another day.
    #[serde(default)]
    keep_old_secret_active_for_24_hours: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct TestWebhookEndpoint {
    event_type: EventKind,
}

/// How an endpoint answered a test.
#[derive(Debug, Serialize, ToSchema)]
struct WebhookEndpointTest {
    #[schema(example = "webhook_endpoint.test")]
    object: &'static str,
    webhook_endpoint_id: String,
    event_type: EventKind,
    /// Whether an answer came, whatever it was.
    success: bool,
    status_code: u16,
}

#[derive(Debug, Serialize, ToSchema)]
struct DeletedWebhookEndpoint {
    id: String,
    #[schema(example = "webhook_endpoint.deleted")]
    object: &'static str,
    deleted: bool,
}

/// The kinds of events that there are.
#[derive(Debug, Serialize, ToSchema)]
struct WebhookEventTypeList {
    #[schema(example = "list")]
    object: &'static str,
    data: [EventKind; 3],
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// The last id of the page before.
    after: Option<String>,
    #[param(minimum = 1, maximum = 100)]
    limit: Option<usize>,
}

/// Lists the webhook endpoints, without their secrets.
#[utoipa::path(get, path = "/v1/webhook_endpoints", tag = "webhooks", params(ListQuery),
    responses((status = 200, body = WebhookEndpointList), (status = "4XX", body = ErrorBody)))]
async fn list(
    State(webhooks): State<Webhooks>,
    Query(query): Query<ListQuery>,
) -> Result<Json<WebhookEndpointList>, ApiError> {
    let limit = query.limit.unwrap_or(20);
    if !(1..=100).contains(&limit) {
        return Err(ApiError::bad_request("limit: give 1 to 100").param("limit"));
    }
    let mut rest = webhooks.endpoints().list();
    if let Some(after) = query.after {
        let place = rest.iter().position(|endpoint| endpoint.id == after);
        let place = place.ok_or_else(|| ApiError::not_found("webhook endpoint", &after).param("after"))?;
        rest.drain(..=place);
    }
    let has_more = rest.len() > limit;
    let data: Vec<WebhookEndpoint> = rest.into_iter().take(limit).map(Into::into).collect();
    let (first_id, last_id) = (data.first().map(|one| one.id.clone()), data.last().map(|one| one.id.clone()));
    Ok(Json(WebhookEndpointList { object: "list", data, first_id, last_id, has_more }))
}

/// Adds an endpoint and gives its signing secret, this once.
#[utoipa::path(post, path = "/v1/webhook_endpoints", tag = "webhooks",
    responses((status = 200, body = WebhookEndpointWithSecret), (status = "4XX", body = ErrorBody)))]
async fn create(
    State(webhooks): State<Webhooks>,
    Json(asked): Json<CreateWebhookEndpoint>,
) -> Result<Json<WebhookEndpointWithSecret>, ApiError> {
    let made = blocking(move || webhooks.endpoints().create(asked.name, asked.url, asked.event_types)).await;
    Ok(Json(made.map_err(|error| fault(&error, ""))?.into()))
}

/// Gives one endpoint.
#[utoipa::path(get, path = "/v1/webhook_endpoints/{id}", tag = "webhooks", params(("id" = String, Path)),
    responses((status = 200, body = WebhookEndpoint), (status = "4XX", body = ErrorBody)))]
async fn get(
    State(webhooks): State<Webhooks>,
    Path(id): Path<String>,
) -> Result<Json<WebhookEndpoint>, ApiError> {
    let endpoint = webhooks.endpoints().get(&id);
    Ok(Json(endpoint.ok_or_else(|| fault(&EndpointError::Unknown, &id))?.into()))
}

/// Changes the name, the address or the events of an endpoint.
#[utoipa::path(post, path = "/v1/webhook_endpoints/{id}", tag = "webhooks", params(("id" = String, Path)),
    responses((status = 200, body = WebhookEndpoint), (status = "4XX", body = ErrorBody)))]
async fn update(
    State(webhooks): State<Webhooks>,
    Path(id): Path<String>,
    Json(asked): Json<UpdateWebhookEndpoint>,
) -> Result<Json<WebhookEndpoint>, ApiError> {
    let change = Change { name: asked.name, url: asked.url, event_types: asked.event_types };
    let edited = id.clone();
    let endpoint = blocking(move || webhooks.endpoints().update(&edited, change)).await;
    Ok(Json(endpoint.map_err(|error| fault(&error, &id))?.into()))
}

/// Removes an endpoint; what it has not received is dropped.
#[utoipa::path(delete, path = "/v1/webhook_endpoints/{id}", tag = "webhooks", params(("id" = String, Path)),
    responses((status = 200, body = DeletedWebhookEndpoint), (status = "4XX", body = ErrorBody)))]
async fn delete(
    State(webhooks): State<Webhooks>,
    Path(id): Path<String>,
) -> Result<Json<DeletedWebhookEndpoint>, ApiError> {
    let removed = id.clone();
    let done = blocking(move || webhooks.endpoints().delete(&removed)).await;
    done.map_err(|error| fault(&error, &id))?;
    Ok(Json(DeletedWebhookEndpoint { id, object: "webhook_endpoint.deleted", deleted: true }))
}

/// Gives an endpoint a new signing secret.
#[utoipa::path(post, path = "/v1/webhook_endpoints/{id}/rotate_secret", tag = "webhooks",
    params(("id" = String, Path)),
    responses((status = 200, body = WebhookEndpointWithSecret), (status = "4XX", body = ErrorBody)))]
async fn rotate_secret(
    State(webhooks): State<Webhooks>,
    Path(id): Path<String>,
    Json(asked): Json<RotateWebhookSecret>,
) -> Result<Json<WebhookEndpointWithSecret>, ApiError> {
    let edited = id.clone();
    let overlap = asked.keep_old_secret_active_for_24_hours;
    let endpoint = blocking(move || webhooks.endpoints().rotate(&edited, overlap)).await;
    Ok(Json(endpoint.map_err(|error| fault(&error, &id))?.into()))
}

/// Posts an event that did not happen and tells how the endpoint answered.
#[utoipa::path(post, path = "/v1/webhook_endpoints/{id}/test", tag = "webhooks", params(("id" = String, Path)),
    responses((status = 200, body = WebhookEndpointTest), (status = "4XX", body = ErrorBody)))]
async fn test(
    State(webhooks): State<Webhooks>,
    Path(id): Path<String>,
    Json(asked): Json<TestWebhookEndpoint>,
) -> Result<Json<WebhookEndpointTest>, ApiError> {
    let (tested, event_type) = (id.clone(), asked.event_type);
    let status = blocking(move || webhooks.test(&tested, event_type)).await;
    let status_code = status.map_err(|error| fault(&error, &id))?;
    let object = "webhook_endpoint.test";
    Ok(Json(WebhookEndpointTest { object, webhook_endpoint_id: id, event_type, success: true, status_code }))
}

/// Lists the kinds of events that endpoints can ask for.
#[utoipa::path(get, path = "/v1/webhook_event_types", tag = "webhooks",
    responses((status = 200, body = WebhookEventTypeList)))]
async fn event_types() -> Json<WebhookEventTypeList> {
    Json(WebhookEventTypeList { object: "list", data: EventKind::ALL })
}

/// Runs what waits for the disk or the network outside the threads that answer requests.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, EndpointError> + Send + 'static,
) -> Result<T, EndpointError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(EndpointError::Io(std::io::Error::other(error))),
    }
}

fn fault(error: &EndpointError, id: &str) -> ApiError {
    let request = ApiError::bad_request(error);
    match error {
        EndpointError::Unknown => ApiError::not_found("webhook endpoint", id),
        EndpointError::Name => request.param("name"),
        EndpointError::NoEvents => request.param("event_types"),
        EndpointError::Url(_) => request.param("url"),
        EndpointError::TooMany | EndpointError::Unreachable(_) => request,
        EndpointError::Busy => ApiError::busy(error, 10),
        EndpointError::Io(_) => ApiError::internal(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{data_dir::DataDir, webhook::Reach};
    use axum::{
        Router,
        body::{Body, to_bytes},
        http::{Request, StatusCode},
    };
    use serde_json::{Value, json};
    use tower::ServiceExt;

    fn app() -> (tempfile::TempDir, Router) {
        let folder = tempfile::tempdir().unwrap();
        let (data, _) = DataDir::open(folder.path()).unwrap();
        let webhooks = Webhooks::open(&data, Reach::Network).unwrap();
        let (router, _) = routes::<Webhooks>().split_for_parts();
        (folder, router.with_state(webhooks))
    }

    async fn call(app: &Router, method: &str, path: &str, body: Value) -> (StatusCode, Value) {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let request = request.body(Body::from(body.to_string())).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    const EVENT: &str = "fine_tuning.job.failed";

    #[tokio::test]
    async fn a_secret_is_given_when_it_is_made_and_never_again() {
        let (_folder, app) = app();
        let asked = json!({"name": "a", "url": "https://example.org", "event_types": [EVENT]});
        let (status, made) = call(&app, "POST", "/v1/webhook_endpoints", asked).await;
        assert_eq!(status, StatusCode::OK);
        let secret = made["signing_secret"].as_str().unwrap();
        let path = format!("/v1/webhook_endpoints/{}", made["id"].as_str().unwrap());
        let (_, rotated) = call(&app, "POST", &format!("{path}/rotate_secret"), json!({})).await;
        assert_ne!(rotated["signing_secret"], made["signing_secret"]);
        for (method, path, body) in [
            ("GET", path.as_str(), json!(null)),
            ("GET", "/v1/webhook_endpoints", json!(null)),
            ("POST", &path, json!({"name": "b"})),
        ] {
            let (status, answer) = call(&app, method, path, body).await;
            assert_eq!(status, StatusCode::OK, "{answer}");
            let text = answer.to_string();
            assert!(!text.contains("\"signing_secret\"") && !text.contains(secret), "{text}");
        }
    }

    #[tokio::test]
    async fn pages_go_from_the_newest_to_the_oldest() {
        let (_folder, app) = app();
        for name in ["a", "b", "c"] {
            let asked = json!({"name": name, "url": "https://example.org", "event_types": [EVENT]});
            call(&app, "POST", "/v1/webhook_endpoints", asked).await;
        }
        let (_, page) = call(&app, "GET", "/v1/webhook_endpoints?limit=2", json!(null)).await;
        let names = |page: &Value| {
            page["data"]
                .as_array()
                .unwrap()
                .iter()
                .map(|one| one["name"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!((names(&page), page["has_more"].clone()), (vec!["c".into(), "b".into()], json!(true)));
        let after = format!("/v1/webhook_endpoints?after={}", page["last_id"].as_str().unwrap());
        let (_, page) = call(&app, "GET", &after, json!(null)).await;
        assert_eq!((names(&page), page["has_more"].clone()), (vec!["a".into()], json!(false)));
    }

    #[tokio::test]
    async fn faults_name_the_field_and_never_are_the_servers() {
        let (_folder, app) = app();
        let unknown = "/v1/webhook_endpoints/whe_none";
        let list = "/v1/webhook_endpoints";
        let url = json!({"name": "a", "url": "ftp://x", "event_types": [EVENT]});
        let kind = json!({"name": "a", "url": "https://example.org", "event_types": ["batch.completed"]});
        for (method, path, body, status, param) in [
            ("GET", unknown, json!(null), 404, json!(null)),
            ("DELETE", unknown, json!(null), 404, json!(null)),
            ("POST", unknown, json!({"name": ""}), 400, json!("name")),
            ("POST", list, url, 400, json!("url")),
            ("POST", list, kind, 400, json!(null)),
            ("POST", list, json!([]), 400, json!(null)),
            ("GET", "/v1/webhook_endpoints?limit=0", json!(null), 400, json!("limit")),
            ("GET", "/v1/webhook_endpoints?limit=x", json!(null), 400, json!(null)),
            ("GET", "/v1/webhook_endpoints?after=x", json!(null), 404, json!("after")),
        ] {
            let (answered, answer) = call(&app, method, path, body.clone()).await;
            assert_eq!(
                (answered.as_u16(), &answer["error"]["param"]),
                (status, &param),
                "{method} {path} {body} {answer}"
            );
        }
    }

    #[tokio::test]
    async fn tests_of_endpoints_that_do_not_answer_leave_threads_to_others() {
        let (_folder, app) = app();
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", silent.local_addr().unwrap());
        let asked = json!({"name": "a", "url": url, "event_types": [EVENT]});
        let (_, made) = call(&app, "POST", "/v1/webhook_endpoints", asked).await;
        let path = format!("/v1/webhook_endpoints/{}/test", made["id"].as_str().unwrap());
        let test = || call(&app, "POST", &path, json!({"event_type": EVENT}));
        let one_more = async {
            // Each of the four has its connection.
            let waiting: Vec<_> = (0..4).map(|_| silent.accept().unwrap()).collect();
            let refused = test().await;
            drop(waiting);
            refused
        };
        let four = futures_util::future::join_all((0..4).map(|_| test()));
        let (four, (status, error)) = tokio::join!(four, one_more);
        assert_eq!(
            (status, &error["error"]["code"]),
            (StatusCode::TOO_MANY_REQUESTS, &json!("rate_limit_exceeded"))
        );
        assert!(four.iter().all(|(status, _)| *status == StatusCode::BAD_REQUEST), "{four:?}");
    }
}
