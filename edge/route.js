import cf from 'cloudfront';

// Runs on every request, before the cache. Reads that wait (long-polls and event streams, whatever `live` says) go to the live
// function, or to the container in its place, so that they take no room from plain reads; everything else goes to the HTTP API.
// What comes from here and from nowhere else is written over whatever the client sent under its name.
function handler(event) {
    const request = event.request;
    const headers = request.headers;
    // The cache key has names as they were sent: an encoded one would poison the answer without it.
    if (Object.keys(request.querystring).some(name => name.indexOf('%') >= 0)) {
        return {
            statusCode: 400,
            statusDescription: 'Bad Request',
            headers: {
                'content-type': { value: 'application/json' },
                'cache-control': { value: 'no-store' },
                'access-control-allow-origin': { value: '*' },
            },
            body: '{"error": "Names of query parameters must not be percent-encoded"}',
        };
    }
    request.cookies = {};  // Nothing here reads them.
    delete headers['x-tidemark-authorization'];
    delete headers['x-tidemark-content-type'];
    // Origins see their own name as Host, and have to write the one that the client knows.
    headers['x-tidemark-host'] = { value: headers.host.value };
    // Origins decode a path, refuse what they cannot decode, cut it at a "?", or sign another form of it than was sent (origin access control, with
    // a space or "+"), and an HTTP API takes 10,240 bytes of request line and headers. So the path is written once, as it was sent, in letters, digits
    // and "/_.-~" alone, which every form leaves alone: "~" is a percent sign, "~~2b" another character (observability/invocation.py).
    request.uri = encodeURI(request.uri).replace(/%25/g, '%')
        .replace(/%(?![0-9a-f]{2})|[^%\w\/.-]/gi, found => '~~' + found.charCodeAt(0).toString(16))
        .replace(/%/g, '~').replace(/\/\./g, '/~~2e');
    // How path and body are sent, by version (http/security/origin.py): functions of an older release answer 503 to a later one.
    headers['x-tidemark-edge-version'] = { value: '2' };
    if (request.method === 'GET' && request.querystring.live) {
        // The request is signed for the function's address, and the signature takes the place of the token.
        if (headers.authorization) {
            headers['x-tidemark-authorization'] = { value: headers.authorization.value };
        }
        cf.selectRequestOriginById('live');
    } else {
        // Bytes travel to the function as base64, 4 MiB in 5.6 MB. Text travels as JSON, where quotes and line ends count
        // twice, and Lambda takes 6 MB.
        const type = headers['content-type'];
        if (type) {
            headers['x-tidemark-content-type'] = { value: (type.multiValue || [type]).map(each => each.value).join(',') };
            headers['content-type'] = { value: 'application/octet-stream' };
        }
    }
    return request;
}
