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
	"github.com/packhorse-git/packhorse/internal/receivepack"
)

const (
	// maxSaid bounds what a pusher is told of an answer, in bytes.
	maxSaid = 4 << 10
	// maxHeader bounds the header of an answer in bytes.
	maxHeader = 32 << 10
)

// message is the body of a request. Names and options of git's are bytes. Where one is no UTF-8, which is all that JSON's texts can hold, its bytes
// stand beside it (inexact); of options all do, if one is not.
type message struct {
	Event           string   `json:"event"`
	Push            string   `json:"push"`
	Time            string   `json:"time"`
	Repository      string   `json:"repository"`
	RepositoryBytes []byte   `json:"repository_bytes,omitempty"`
	Pusher          pusher   `json:"pusher"`
	Options         []string `json:"options"`
	OptionsBytes    [][]byte `json:"options_bytes,omitempty"`
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
}

// inexact is what stands beside a text that JSON cannot hold as it is; nil: nothing.
func inexact(s string) []byte {
	if utf8.ValidString(s) {
		return nil
	}
	return []byte(s)
}

// exact is the text that stood there before it became JSON.
func exact(s string, b []byte) string {
	if b != nil {
		return string(b)
	}
	return s
}

// options are those of the push.
func (m *message) options() []string {
	if m.OptionsBytes == nil {
		return m.Options
	}
	var all []string
	for _, b := range m.OptionsBytes {
		all = append(all, string(b))
	}
	return all
}

// encode makes the body that tells of a push.
func encode(event string, now time.Time, p *receivepack.Push, updates []receivepack.Update) []byte {
	m := message{
		Event: event, Push: p.ID, Time: now.UTC().Format(time.RFC3339Nano), Pusher: pusher{p.Pusher.Name, p.Pusher.Address},
		Repository: p.Repo.String(), RepositoryBytes: inexact(p.Repo.String()),
		Options: append([]string{}, p.Options...), Updates: make([]update, 0, len(updates)),
	}
	if slices.ContainsFunc(p.Options, func(s string) bool { return !utf8.ValidString(s) }) {
		for _, s := range p.Options {
			m.OptionsBytes = append(m.OptionsBytes, []byte(s))
		}
	}
	for _, u := range updates {
		digits := max(u.Old.Format().HexSize(), u.New.Format().HexSize())
		m.Updates = append(m.Updates, update{string(u.Ref), inexact(string(u.Ref)), hexadecimal(u.Old, digits), hexadecimal(u.New, digits)})
	}
	b, err := json.Marshal(m)
	if err != nil { // there is nothing in it that could fail
		panic(err)
	}
	return append(b, '\n')
}

// hexadecimal is an ID as others write it, the zero one too.
func hexadecimal(id git.ObjectID, digits int) string {
	if id.IsZero() {
		return strings.Repeat("0", digits)
	}
	return id.String()
}

// answer is what a target said.
type answer struct {
	status int
	body   []byte
}

// said is the body as people are shown it.
func (a answer) said() string {
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
	}, strings.ToValidUTF8(string(a.body), "?"))
	return strings.TrimSpace(text)
}

// post sends a body, and reads as much of the answer as is wanted, all within the target's time.
func (h *Hooks) post(ctx context.Context, t *Target, event, delivery, trace string, body []byte, want int64) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, t.Timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, t.URL, bytes.NewReader(body))
	if err != nil {
		return answer{}, errors.New("the url cannot be used")
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", h.o.Agent)
	r.Header.Set("Packhorse-Event", event)
	r.Header.Set("Packhorse-Delivery", delivery)
	if trace != "" {
		r.Header.Set("Traceparent", trace)
	}
	if t.Secret != nil {
		if secret := t.Secret(); secret != "" {
			mac := hmac.New(sha256.New, []byte(secret))
			mac.Write(body)
			r.Header.Set("Packhorse-Signature", "sha256="+hex.EncodeToString(mac.Sum(nil)))
		}
	}
	response, err := t.client.Do(r)
	if err != nil {
		return answer{}, hidden(err)
	}
	defer response.Body.Close()
	a := answer{status: response.StatusCode}
	a.body, err = io.ReadAll(io.LimitReader(response.Body, want))
	if err != nil && response.StatusCode/100 != 2 && want > 0 {
		a.body = nil // half a sentence
	}
	return a, nil
}

// hidden takes the URL out of an error: there may be a secret in it.
func hidden(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}
