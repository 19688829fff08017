package auth

import (
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

func TestLFSURLs(t *testing.T) {
	t.Parallel()
	now, secret := time.Unix(1e9, 0), "the first key"
	tokens := NewLFSTokens(func() string { return secret }, nil, func() time.Time { return now })
	app, other := repoPath(t, "team/app"), repoPath(t, "team/other")
	const header, action = "Basic YWxpY2U6c2VjcmV0", "4d7a2146/7"
	seal := tokens.URLs(header, app, Write)
	token := seal(action)
	if token == seal(action) || !isLFSToken(token) || strings.Contains(Redact("?token="+token), token[10:]) {
		t.Errorf("token = %q, want another one each time, which Redact removes", token)
	}
	for _, path := range []string{"team/app", "team/app.git"} {
		if got, err := tokens.Open(token, repoPath(t, path), Write, action); got != header || err != nil {
			t.Errorf("Open for %s = %q, %v, want the header", path, got, err)
		}
	}
	wrong := func(name, token string, repo git.RepoPath, op Operation, action string) {
		t.Helper()
		if got, err := tokens.Open(token, repo, op, action); got != "" || !fault.Is(err, fault.Unauthenticated) {
			t.Errorf("%s: Open = %q, %v, want Unauthenticated", name, got, err)
		}
	}
	wrong("another repository", token, other, Write, action)
	wrong("another operation", token, app, Read, action)
	wrong("another action", token, app, Write, "verify")
	for i := range len(token) - len(tokenPrefix) { // each character of it
		at, replacement := len(tokenPrefix)+i, "a"
		if token[at] == 'a' {
			replacement = "b"
		}
		if changed := token[:at] + replacement + token[at+1:]; i < len(token)-len(tokenPrefix)-1 { // spare bits are last
			wrong("a changed token", changed, app, Write, action)
		}
	}
	for _, text := range []string{"", "phk_", "phk_a", token[:len(token)-8], newToken(), strings.Repeat("x", 9000)} {
		wrong("no token", text, app, Write, action)
	}
	if tokens.URLs(strings.Repeat("x", maxURLCredential+1), app, Write) != nil {
		t.Error("a long header has a token, want none")
	}
	now = now.Add(LFSTokenLife)
	wrong("expired", token, app, Write, action)
	now, secret = now.Add(-time.Minute), "the second key"
	wrong("another key", token, app, Write, action)
}
