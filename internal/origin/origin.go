// Package origin is the client of a server that mirrors follow: any Git host, over HTTP or SSH.
//
// An Origin is one host. It asks for refs and packs in protocol version 2 (gitprotocol-v2(5)), and in version 0
// (gitprotocol-pack(5)) if the host does not know version 2. It also relays requests of clients without a change. All
// requests to the host share one budget, one pause after Retry-After, and one circuit breaker.
//
// Nothing that the origin sends is trusted. Names, lengths, redirects and addresses are checked, and an answer that is
// too large or too slow ends with an error. A caller's credential goes to the configured scheme, host and port only.
package origin

import (
	"context"
	"crypto/x509"
	"io"
	"log/slog"
	"net/url"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

// Secret is a credential. An origin takes and sends it as the value of an Authorization header.
type Secret = node.Secret

// Source returns the mirror's own credential as the value of an Authorization header (Basic or Bearer). It is safe for
// concurrent use and does its own caching.
type Source interface {
	Authorization(ctx context.Context) (Secret, error)
}

// Options configure an Origin. Only URL is required.
type Options struct {
	// URL is the origin: https://HOST/BASE/, http:// or ssh://[USER@]HOST/BASE/. Repositories are below it.
	URL *url.URL
	// Private allows private, loopback and link-local addresses. It is implied if the host of URL is an address or
	// localhost.
	Private bool
	// Authorities are trusted for TLS. Nil means those of the system.
	Authorities *x509.CertPool
	// Proxy is an HTTP proxy. Nil means none: the environment is not read.
	Proxy *url.URL

	Requests      int           // maximum number of concurrent requests. Zero means 16.
	PerMinute     int           // maximum number of requests per minute. Zero means no limit.
	AnswerTimeout time.Duration // until the header of an answer. Zero means 30 s.
	Stall         time.Duration // how long an answer may stay below a minimum rate. Zero means 60 s.
	MaxRefs       int           // maximum number of refs in a list. Zero means 1,000,000.

	Credential Source      // the mirror's own credential, for requests without a caller's. Nil means none.
	SSH        *SSHOptions // keys and known hosts of an ssh:// origin
	Agent      string      // agent string; "" means "packhorse"

	Metrics *Metrics     // nil means none
	Log     *slog.Logger // nil means none
}

// Refs is a list of refs at the origin. The list is parsed when List is called: an unchanged list is recognized by its
// Digest.
type Refs struct {
	Format  git.ObjectFormat
	Version protocol.Version // the protocol version of the origin; only V2 can answer a relayed request of version 2
	Digest  [32]byte         // equal digests of one repository and equal prefixes mean equal lists
	Moved   string           // the new path of the repository if the origin redirected, else ""
}

// List is the parsed list of refs.
type List struct {
	Head   git.RefName  // the branch that HEAD points to, which may not exist; "" if HEAD is detached or missing
	HeadID git.ObjectID // the commit of HEAD; zero if HEAD is unborn or missing
	Refs   []Ref        // in the origin's order, without HEAD
}

// Ref is one ref.
type Ref struct {
	Name   git.RefName
	ID     git.ObjectID
	Peeled git.ObjectID // the object behind an annotated tag; zero if ID is not one
}

// FetchRequest is a request for a pack.
type FetchRequest struct {
	Format git.ObjectFormat
	Wants  []git.ObjectID
	Haves  []git.ObjectID // the origin ignores unknown ones
	// Progress is called with the text that the origin sends to people, in pieces as they arrive. It is called from
	// Pack.Read and does not keep its argument. Nil means that the origin sends none.
	Progress func(text []byte)
}

// Response is a response of the origin with status 200. The caller closes Body. Reading fails if the origin stalls.
type Response struct {
	ContentType string
	Length      int64  // bytes of Body; -1 if unknown
	Moved       string // the new path of the repository if the origin redirected, else ""
	Body        io.ReadCloser
}

// Origin is a client of one origin host. It is safe for concurrent use.
//
// A path is that of a repository below Options.URL, decoded, without a slash at its ends, such as "owner/repo.git".
// Requests of upload-pack with a zero auth use Options.Credential, if there is one. Errors have kinds of package fault
// and wrap an *Error if the origin is involved. IsDown reports whether one means an outage. Unauthenticated and Denied
// are about the caller's credential only: a refusal of the mirror's own is Unavailable.
type Origin struct {
	o Options
}

// New returns an Origin. The caller has to close it.
func New(o Options) (*Origin, error) { return &Origin{o: o}, nil }

// Close ends running requests and closes the connections.
func (o *Origin) Close() error { return nil }

// Host returns the host of the origin, for messages and labels.
func (o *Origin) Host() string { return o.o.URL.Host }

// CanRelay reports whether the origin takes requests of clients as they are. Only HTTP origins do.
func (o *Origin) CanRelay() bool { return o.o.URL.Scheme != "ssh" }

// Probe finds out whether the origin lets the owner of a credential use a service on a repository. It never uses the
// mirror's own credential and follows no redirect: after one the error is NotFound and its Error.Moved is the new
// place.
func (o *Origin) Probe(ctx context.Context, path string, service protocol.Service, auth Secret) error {
	return errUnsupported
}

// Refs asks for HEAD and the refs whose names begin with one of the prefixes; all refs without prefixes.
func (o *Origin) Refs(ctx context.Context, path string, auth Secret, prefixes []string) (*Refs, error) {
	return nil, errUnsupported
}

// List parses the list. Its error is Unavailable if the origin sent invalid data.
func (r *Refs) List() (*List, error) { return nil, errUnsupported }

// Fetch asks for a pack in one request, without a negotiation.
func (o *Origin) Fetch(ctx context.Context, path string, auth Secret, f FetchRequest) (*Pack, error) {
	return nil, errUnsupported
}

// FetchBody returns the request that Fetch sends in protocol version 2, for Relay. ReadPack reads its response.
func (o *Origin) FetchBody(f FetchRequest) []byte { return nil }

// Pack is a pack as it arrives. It is not safe for concurrent use.
type Pack struct{ io.ReadCloser }

// ReadPack returns the pack in a response to FetchBody. Progress is as in FetchRequest. Closing the pack closes r.
func ReadPack(r io.ReadCloser, progress func(text []byte)) *Pack { return &Pack{r} }

// Advertisement asks for the advertisement of a service, as it is. gitProtocol is the client's Git-Protocol header.
func (o *Origin) Advertisement(ctx context.Context, path string, service protocol.Service, auth Secret,
	gitProtocol string) (*Response, error) {
	return nil, errUnsupported
}

// Relay sends a client's request to the service, as it is. length is that of body in bytes, -1 if unknown. The response
// may arrive before the body has been read. A connection that fails is not tried again.
func (o *Origin) Relay(ctx context.Context, path string, service protocol.Service, auth Secret, gitProtocol string,
	body io.Reader, length int64) (*Response, error) {
	return nil, errUnsupported
}
