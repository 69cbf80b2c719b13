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
    delete headers['x-tidemark-authorization'];
    delete headers['x-tidemark-content-type'];
    // What is told in these headers, by version (http/security/origin_secret.py): functions of an older release answer 503 and do not guess.
    headers['x-tidemark-edge-version'] = { value: '1' };
    // Origins see their own name as Host, and have to write the one that the client knows.
    headers['x-tidemark-host'] = { value: headers.host.value };
    // The path as it was sent, in characters that a header may have: the HTTP API decodes it before its functions see it.
    headers['x-tidemark-path'] = { value: encodeURI(request.uri).replace(/%25/g, '%') };
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
        // The HTTP API decodes twice, refuses what it cannot decode then, and cuts the path at a "?" that it finds.
        request.uri = request.uri.replace(/%(?![0-9a-f]{2})/gi, '%25').replace(/%/g, '%25');
    }
    return request;
}
