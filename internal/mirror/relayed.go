package mirror

import (
	"bytes"
	"context"
	"io"
	"slices"

	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node"
)

// gitProtocol returns the Git-Protocol header for a version.
func gitProtocol(v protocol.Version) string {
	if v == protocol.V0 {
		return ""
	}
	return "version=" + v.String()[1:]
}

// relay sends the client's fetch to the origin, or follows an equal request of another client.
func (x *exchange) relay(ctx context.Context, p passage, body []byte) error {
	if _, offer := x.mirror.originFeatures(); !offer.Filter && x.session.Version == protocol.V2 {
		body = withoutFilter(body) // the client gets more objects
	}
	if err := x.startBulk(); err != nil {
		return err
	}
	readers, auth := "all", x.credential()
	if p == passForCaller {
		readers = auth.Reveal()
	}
	q := newRelayedRequest(x.mirror.path.String()+" "+x.mirror.originURL()+" "+readers, x.session.Version, body)
	if namesRefs(body) { // the response depends on their values
		q.key = relayKey{}
	}
	client, path, session := x.rule.Origin, x.mirror.originPath(), x.session
	open := func(ctx context.Context) (io.ReadCloser, error) {
		return bodyOf(client.Relay(ctx, path, protocol.UploadPack, auth, gitProtocol(session.Version),
			bytes.NewReader(q.body), int64(len(q.body))))
	}
	wants := x.outcome.Fetch.Wants
	x.outcome = node.Outcome{Command: protocol.CommandFetch, Mirror: node.MirrorRelay,
		Fetch: node.FetchOutcome{Wants: wants}}
	quiet := bytes.Contains(body, []byte("no-progress"))
	return x.mirrors.relays.send(ctx, q.key, q.form, open, x.response, x.following(quiet, false))
}

// withoutFilter returns a request of version 2 without its filter.
func withoutFilter(body []byte) []byte {
	i := bytes.Index(body, []byte("filter "))
	if i < 4 {
		return body
	}
	n, err := pktline.ParseLength(body[i-4:])
	if err != nil || n < 4 || i-4+n > len(body) {
		return body
	}
	return slices.Concat(body[:i-4], body[i-4+n:])
}

// bodyOf returns the body of a response.
func bodyOf(r *origin.Response, err error) (io.ReadCloser, error) {
	if err != nil {
		return nil, err
	}
	return r.Body, nil
}
