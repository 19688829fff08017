package auth

import (
	"context"
	"encoding/hex"
	"net/http"
	"path/filepath"
	"testing"
	"time"
)

// BenchmarkRequest is what each request costs: a token looked up in a thousand, and a decision by the last of ten
// rules.
func BenchmarkRequest(b *testing.B) {
	file := NewTokenFile(filepath.Join(b.TempDir(), "tokens"))
	token := ""
	err := file.change(b.Context(), func(t *tokenTable) (*accessChange, error) {
		for range 1000 {
			token = newToken()
			hash := hashToken(token)
			t.Tokens = append(t.Tokens, Token{ID: "ci/1", Name: "ci", Scope: "read", Hash: hex.EncodeToString(hash[:])})
		}
		return &accessChange{}, nil
	})
	if err != nil {
		b.Fatal(err)
	}
	list := rules(b, "anonymous pub/** read")
	for range 9 {
		list = append(list, rules(b, "alice,bob,carol team/*/x/** write")...)
	}
	metrics := NewMetrics(nil)
	sources := NewSources(metrics, discard)
	tokens := NewTokens(TokenOptions{File: file, All: true, Sources: sources, Log: discard})
	a := New(Options{
		Authenticators: []Authenticator{tokens}, Rules: append(list, rules(b, "* ** read")...), Guesses: 10, Metrics: metrics,
		Sources: sources, Log: discard,
	})
	defer a.Close()
	repo := repoPath(b, "team/group/app.git")
	r := &http.Request{RemoteAddr: "192.0.2.1:1234", Header: http.Header{"Authorization": {basic("x", token)}}}
	for read := true; read; { // until the file is so old that it is not read for each request
		read, _ = tokens.watcher.Check(time.Now())
	}
	b.ReportAllocs()
	for b.Loop() {
		id, err := a.HTTP(r)
		if err == nil {
			err = a.May(context.Background(), id, repo, Read)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
