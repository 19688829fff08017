package mirror

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
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

// relayAdvertisement sends the origin's advertisement of version 0 or 1 with the mirrored ones of its refs.
func (x *exchange) relayAdvertisement(ctx context.Context, refs *origin.Refs) error {
	list, err := refs.List()
	if err != nil {
		return err
	}
	if err := x.startBulk(); err != nil {
		return err
	}
	client, path, session, auth := x.rule.Origin, x.mirror.originPath(), x.session, x.credential()
	rule, showsHead := x.rule, x.rule.mirrorsHead(list)
	key := relayKey(sha256.Sum256(fmt.Appendf(nil, "advertisement %s %q %q %q %v", session.Version,
		x.mirror.path.String(), x.mirror.originURL(), rule.Refs, showsHead))) // what the filter depends on
	open := func(ctx context.Context) (io.ReadCloser, error) {
		body, err := advertised(client.Advertisement(ctx, path, protocol.UploadPack, auth, gitProtocol(session.Version)))
		if err != nil {
			return nil, err
		}
		return &refFilter{origin: body, packets: pktline.NewReader(body), shows: func(name git.RefName) bool {
			return name == git.HEAD && showsHead || rule.mirrors(name)
		}}, nil
	}
	x.outcome = node.Outcome{Mirror: node.MirrorRelay}
	return x.mirrors.relays.send(ctx, key, formPackets, open, x.response, followOptions{})
}

// advertised returns an advertisement without the line of HTTP about the service, which the gateway adds
// (gitprotocol-http(5), "Smart Server Response").
func advertised(r *origin.Response, err error) (io.ReadCloser, error) {
	if err != nil {
		return nil, err
	}
	head := make([]byte, 4)
	_, err = io.ReadFull(r.Body, head)
	if n, bad := pktline.ParseLength(head); err == nil && bad == nil && n > 4 && n < 100 {
		line := make([]byte, n-4+len("0000"))
		if _, err = io.ReadFull(r.Body, line); err == nil && bytes.HasPrefix(line, []byte("# service=")) {
			return r.Body, nil
		}
	}
	_ = r.Body.Close()
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return nil, fault.Wrap(fault.Unavailable, "the origin sent an invalid advertisement", err)
}
