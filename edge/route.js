import cf from 'cloudfront';

// Runs on every request, before the cache. Event streams go to the function that streams, everything else to the
// HTTP API. What comes from here and from nowhere else is written over whatever the client sent under its name.
function handler(event) {
    const request = event.request;
    const headers = request.headers;
    const live = request.querystring.live;
    delete headers['x-tidemark-authorization'];
    // Origins see their own name as Host, and have to write the one that the client knows.
    headers['x-tidemark-host'] = { value: headers.host.value };
    if (request.method === 'GET' && live && live.value === 'sse' && !live.multiValue) {
        // The request is signed for the function's address, and the signature takes the place of the token.
        if (headers.authorization) {
            headers['x-tidemark-authorization'] = { value: headers.authorization.value };
        }
        cf.selectRequestOriginById('live');
    }
    return request;
}
