package auth

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

func bearer(authorization string) *http.Request {
	return &http.Request{Header: http.Header{"Authorization": {authorization}}, RemoteAddr: "192.0.2.1:1"}
}

func TestLFSTokens(t *testing.T) {
	t.Parallel()
	now, key := time.Unix(1e9, 0), "the first key"
	tokens := NewLFSTokens(func() string { return key }, func() time.Time { return now })
	app, other := repoPath(t, "team/app"), repoPath(t, "team/other")
	grant := &Grant{Operation: Write, Repositories: []Pattern{{pathOf(app)}}}
	made := Identity{Name: "alice", By: ByKey, Credential: "SHA256:abc", Address: "192.0.2.9", Grant: grant}
	token := tokens.New(made, app, Read)
	if anonymous := tokens.New(Identity{}, app, Read); anonymous != "" {
		t.Errorf("token of an anonymous caller = %q, want none", anonymous)
	}
	id, left, ok, err := tokens.Identify(bearer(token), app)
	if !ok || err != nil || left != LFSTokenLife || id.Name != "alice" || id.By != ByKey ||
		id.Credential != "SHA256:abc" ||
		id.Address != "192.0.2.1" || !id.Grant.allows(pathOf(app), Read) || id.Grant.allows(pathOf(app), Write) ||
		id.Grant.allows(pathOf(other), Read) {
		t.Errorf("Identify = %+v, %s, %t, %v, want alice who may read the repository", id, left, ok, err)
	}
	wrong := func(name, authorization string, repo git.RepoPath) {
		t.Helper()
		if id, _, ok, err := tokens.Identify(bearer(authorization), repo); !ok || !fault.Is(err, fault.Unauthenticated) ||
			!id.Anonymous() {
			t.Errorf("%s: Identify = %+v, %t, %v, want Unauthenticated", name, id, ok, err)
		}
	}
	wrong("another repository", token, other)
	for i := len("Bearer phk_"); i < len(token); i += 7 {
		changed := []byte(token)
		if changed[i]++; changed[i] == '8' || changed[i] == '{' {
			changed[i] = 'a'
		}
		wrong("a changed token", string(changed), app)
	}
	for _, text := range []string{"Bearer alice", "Basic abc", "Bearer " + newToken(), ""} {
		if _, _, ok, err := tokens.Identify(bearer(text), app); ok || err != nil {
			t.Errorf("Identify(%q) = %t, %v, want that it is another credential", text, ok, err)
		}
	}
	if _, _, err := fromHeader(bearer(token).Header); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("error of the token for other requests = %v, want Unauthenticated", err)
	}
	if text := Redact("error: " + token); strings.Contains(text, token[len("Bearer phk_"):]) ||
		!strings.Contains(text, "***") {
		t.Errorf("Redact = %q, want the token removed", text)
	}
	now = now.Add(LFSTokenLife)
	wrong("expired", token, app)
	now, key = now.Add(-time.Minute), "the second key"
	wrong("another key", token, app)
}
