package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

const (
	// maxReason is the maximum size of the part of a response that the pusher gets, in bytes.
	maxReason = 4 << 10
	// maxHeader is the maximum size of the header of a response in bytes.
	maxHeader = 32 << 10
)

// message is the body of a request. Names and options in Git are bytes. If one is not UTF-8, its bytes are added in
// base64, because JSON cannot hold them. Options are added all together.
type message struct {
	Event           string   `json:"event"`
	Push            string   `json:"push"`
	Time            string   `json:"time"`
	Repository      string   `json:"repository"`
	RepositoryBytes []byte   `json:"repository_bytes,omitempty"`
	Pusher          pusher   `json:"pusher"`
	Options         []string `json:"options"`
	OptionsBytes    [][]byte `json:"options_bytes,omitempty"`
	Record          uint64   `json:"record,omitempty"`
	Updates         []update `json:"updates"`
}

type pusher struct {
	Name    string `json:"name"`
	Address string `json:"address"`
}

type update struct {
	Ref      string `json:"ref"`
	RefBytes []byte `json:"ref_bytes,omitempty"`
	Old      string `json:"old"`
	New      string `json:"new"`
	Kind     string `json:"kind"`
}

// nonUTF8 returns the bytes of a text that JSON cannot hold, and nil for UTF-8.
func nonUTF8(s string) []byte {
	if utf8.ValidString(s) {
		return nil
	}
	return []byte(s)
}

// encodeMessage makes the body of a request.
func encodeMessage(event string, now time.Time, p *receivepack.Push, updates []receivepack.Update) []byte {
	m := message{
		Event: event, Push: p.ID, Time: now.UTC().Format(time.RFC3339Nano), Pusher: pusher{p.Pusher.Name, p.Pusher.Address},
		Repository: p.Repo.String(), RepositoryBytes: nonUTF8(p.Repo.String()),
		Options: append([]string{}, p.Options...), Record: p.Record, Updates: make([]update, 0, len(updates)),
	}
	if slices.ContainsFunc(p.Options, func(s string) bool { return !utf8.ValidString(s) }) {
		for _, s := range p.Options {
			m.OptionsBytes = append(m.OptionsBytes, []byte(s))
		}
	}
	for _, u := range updates {
		digits := max(u.Old.Format().HexSize(), u.New.Format().HexSize())
		m.Updates = append(m.Updates, update{string(u.Ref), nonUTF8(string(u.Ref)), hexID(u.Old, digits),
			hexID(u.New, digits), string(u.Kind)})
	}
	b, err := json.Marshal(m)
	if err != nil { // none of the types can fail
		panic(err)
	}
	return append(b, '\n')
}

// hexID returns an ID in hexadecimal digits, also the zero one.
func hexID(id git.ObjectID, digits int) string {
	if id.IsZero() {
		return strings.Repeat("0", digits)
	}
	return id.String()
}

// valid returns a text as UTF-8.
func valid(s string) string { return strings.ToValidUTF8(s, "\ufffd") }

// response is the response of a target.
type response struct {
	status int
	body   []byte
}

// text returns the body for people.
func (r response) text() string {
	text := strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return r
		case r == '\t':
			return ' '
		case unicode.IsControl(r) || unicode.Is(unicode.Cf, r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(r.body), "?"))
	return strings.TrimSpace(text)
}

// request is one request to a target.
type request struct {
	event, id string // for the headers
	body      []byte
}

// requestsOf returns the requests of the delivery of an event.
func (h *Hooks) requestsOf(ctx context.Context, t *Target, e *event.Event) ([]request, error) {
	p, err := e.Push()
	if err != nil {
		return nil, err
	}
	switch {
	case t.Format == GitHub:
		return h.githubRequests(ctx, t, e, p)
	case e.Kind == event.Push:
		return []request{{"post-receive", e.ID, encodeMessage("post-receive", e.Time, p, p.Updates)}}, nil
	}
	former := string(e.Former)
	body, err := json.Marshal(change{Event: string(e.Kind), ID: e.ID, Time: e.Time.UTC().Format(time.RFC3339Nano),
		Repository: string(e.Repository), RepositoryBytes: nonUTF8(string(e.Repository)), Former: former,
		FormerBytes: nonUTF8(former), Actor: string(e.Actor), Record: e.Record})
	return []request{{string(e.Kind), e.ID, append(body, '\n')}}, err
}

// change is the body of a request about an event that is not a push.
type change struct {
	Event           string `json:"event"`
	ID              string `json:"id"`
	Time            string `json:"time"`
	Repository      string `json:"repository"`
	RepositoryBytes []byte `json:"repository_bytes,omitempty"`
	Former          string `json:"former_repository,omitempty"`
	FormerBytes     []byte `json:"former_repository_bytes,omitempty"`
	Actor           string `json:"actor,omitempty"`
	Record          uint64 `json:"record,omitempty"`
}

// post sends a request and reads up to want bytes of the response, within the time limit of the target.
func (h *Hooks) post(ctx context.Context, t *Target, q request, trace string, want int64) (response, error) {
	body := q.body
	ctx, cancel := context.WithTimeout(ctx, t.Timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, t.URL, bytes.NewReader(body))
	if err != nil {
		return response{}, errors.New("invalid url")
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", h.o.Agent)
	prefix, signature := "Packhorse-", "Packhorse-Signature"
	if t.Format == GitHub {
		prefix, signature = "X-GitHub-", "X-Hub-Signature-256"
	}
	r.Header.Set(prefix+"Event", q.event)
	r.Header.Set(prefix+"Delivery", q.id)
	if trace != "" {
		r.Header.Set("Traceparent", trace)
	}
	if t.Secret != nil {
		if secret := t.Secret(); secret != "" {
			mac := hmac.New(sha256.New, []byte(secret))
			mac.Write(body)
			r.Header.Set(signature, "sha256="+hex.EncodeToString(mac.Sum(nil)))
		}
	}
	answer, err := t.client.Do(r)
	if err != nil {
		return response{}, withoutURL(err)
	}
	defer answer.Body.Close()
	result := response{status: answer.StatusCode}
	result.body, err = io.ReadAll(io.LimitReader(answer.Body, want))
	if err != nil && answer.StatusCode/100 != 2 && want > 0 {
		result.body = nil // incomplete
	}
	return result, nil
}

// withoutURL removes the URL from an error, because it may have a secret.
func withoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}
