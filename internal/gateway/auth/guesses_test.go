package auth

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// TestLockout sends wrong tokens, which are delayed. Right tokens are not.
func TestLockoutOfTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{Guesses: 3})
	token := w.token("ci", Read)
	wrong := func(address string) error {
		_, err := w.from(address, "Bearer "+newToken())
		return err
	}
	for i := range 3 {
		if err := wrong("192.0.2.1"); !fault.Is(err, fault.Unauthenticated) {
			t.Fatalf("guess %d: error = %v, want kind %v", i, err, fault.Unauthenticated)
		}
	}
	for i := range 10 {
		err := wrong("192.0.2.1")
		if after := fault.RetryAfter(err); !fault.Is(err, fault.Exhausted) || after > guessInterval ||
			after < guessInterval-time.Second {
			t.Fatalf("%d: %v after %v, want %v", i, err, after, guessInterval)
		}
		if err := wrong("192.0.2.2"); i == 0 && !fault.Is(err, fault.Unauthenticated) {
			t.Fatalf("guess %d from another address: error = %v, want kind %v", i, err, fault.Unauthenticated)
		}
		w.clock = w.clock.Add(guessInterval + time.Millisecond)
		if err := wrong("192.0.2.1"); !fault.Is(err, fault.Unauthenticated) {
			t.Fatalf("guess %d after the wait: error = %v, want kind %v", i, err, fault.Unauthenticated)
		}
	}
	if _, err := w.from("192.0.2.1", "Bearer "+token); err != nil {
		t.Fatalf("right token from the same address: error = %v, want none", err)
	}
	w.clock = w.clock.Add(rememberWrong)
	if err := wrong("192.0.2.1"); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("wrong error = %v, want kind %v", err, fault.Unauthenticated)
	}
	if err := wrong("192.0.2.1"); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("second guess after %v: error = %v, want kind %v", rememberWrong, err, fault.Unauthenticated)
	}
	// A client with a /64 has all addresses in it.
	for i := range 3 {
		wrong(fmt.Sprintf("2001:db8::%x", i))
	}
	if err := wrong("2001:db8::ffff"); !fault.Is(err, fault.Exhausted) {
		t.Errorf("wrong error = %v, want kind %v", err, fault.Exhausted)
	}
	if err := wrong("2001:db8:0:1::1"); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("wrong error = %v, want kind %v", err, fault.Unauthenticated)
	}
}

// TestLockoutOfPasswords: guessing passwords is slow from one address. It does not lock out callers elsewhere, nor
// those who were right at the address before.
func TestLockoutOfPasswords(t *testing.T) {
	t.Parallel()
	w, app := newHookWorld(t, Options{Guesses: 5}, HookOptions{TTL: time.Second}, decides)
	login := func(address, password string) error {
		_, err := w.from(address, basic("alice", password))
		w.clock = w.clock.Add(time.Millisecond)
		return err
	}
	if err := login("198.51.100.1", "right"); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		err := login("192.0.2.1", fmt.Sprintf("guess %d", i))
		if i < 5 && !fault.Is(err, fault.Unauthenticated) || i >= 5 && !fault.Is(err, fault.Exhausted) {
			t.Fatalf("guess %d: error = %v, want 5 of kind %v and then %v", i, err, fault.Unauthenticated, fault.Exhausted)
		}
	}
	if n := app.questions(); n != 1+5 {
		t.Errorf("questions to the hook = %d, want 6", n)
	}
	for i := range 20 { // as jobs with old passwords do
		if err := login(fmt.Sprintf("192.0.2.%d", 2+i), "old"); !fault.Is(err, fault.Unauthenticated) {
			t.Fatalf("from address %d: error = %v, want kind %v", i, err, fault.Unauthenticated)
		}
	}
	if err := login("203.0.113.9", "right"); err != nil {
		t.Errorf("from a new address: error = %v, want none", err)
	}
	w.clock = w.clock.Add(2 * time.Second)
	for i := range 100 { // from behind the same address, at other names
		w.from("198.51.100.1", basic("bob", fmt.Sprintf("guess %d", i)))
	}
	if err := login("198.51.100.1", "right"); err != nil {
		t.Errorf("alice after guesses at bob: error = %v, want none", err)
	}
	// One right credential does not permit guesses.
	w.clock = w.clock.Add(rememberWrong)
	for i := range 6 {
		err := login("198.51.100.1", fmt.Sprintf("another guess %d", i))
		if i < 5 && !fault.Is(err, fault.Unauthenticated) || i >= 5 && !fault.Is(err, fault.Exhausted) {
			t.Fatalf("guess %d: error = %v, want 5 of kind %v and then %v", i, err, fault.Unauthenticated, fault.Exhausted)
		}
	}
	// A revoked token counts as a guess.
	app.answers(func(w http.ResponseWriter, _ question) { io.WriteString(w, `{"allow": false}`) })
	w.clock = w.clock.Add(2 * time.Second)
	if err := login("198.51.100.1", "right"); err == nil {
		t.Error("error with an old password = nil, want one")
	}
	w.clock = w.clock.Add(time.Millisecond)
	before := app.questions()
	if err := login("198.51.100.1", "right"); !fault.Is(err, fault.Unauthenticated) || app.questions() != before {
		t.Errorf("same password again: error = %v, questions = %d, want kind %v and 0", err, app.questions()-before,
			fault.Unauthenticated)
	}
	if err := login("198.51.100.1", "something else"); !fault.Is(err, fault.Exhausted) || app.questions() != before {
		t.Errorf("another guess: error = %v, questions = %d, want kind %v and 0", err, app.questions()-before,
			fault.Exhausted)
	}
}

func TestGuessesAreBounded(t *testing.T) {
	t.Parallel()
	now := time.Now()
	g := newGuesses(1, func() time.Time { return now })
	wrong := fault.New(fault.Unauthenticated, "wrong")
	for i := range maxGuessers + 1000 {
		g.wrong(&Credential{Secret: "x", Address: fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)}, wrong)
	}
	if attempts, limiters := g.attempts.Len(), g.limiters.Len(); attempts != maxGuessers || limiters != maxGuessers {
		t.Errorf("%d attempts and %d limiters, want %d of each", attempts, limiters, maxGuessers)
	}
	off := newGuesses(0, func() time.Time { return now })
	for range 100 {
		c := &Credential{User: "b", Secret: "x", Address: "a"}
		if err := off.wrong(c, wrong); err != wrong || off.check(c) != nil {
			t.Fatal(err)
		}
	}
	if n := off.attempts.Len(); n != 0 {
		t.Errorf("%d attempts are counted, want none", n)
	}
}

// TestWrongHeadersCount sends invalid headers, which count as guesses.
func TestWrongHeadersCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{Guesses: 2})
	for i, want := range []fault.Kind{fault.Unauthenticated, fault.Unauthenticated, fault.Exhausted} {
		if _, err := w.HTTP(&http.Request{RemoteAddr: "192.0.2.1:1",
			Header: http.Header{"Authorization": {"Basic x"}}}); !fault.Is(err, want) {
			t.Errorf("header %d: error = %v, want kind %v", i, err, want)
		}
	}
}

// TestLockoutOfNames guesses at a user name that others use, like all jobs of a build system. They are not locked out.
func TestLockoutOfNames(t *testing.T) {
	t.Parallel()
	w, _ := newHookWorld(t, Options{Guesses: 3}, HookOptions{TTL: time.Second}, decides)
	for i := range 50 {
		for _, guess := range []string{"first", "second"} {
			if _, err := w.from("192.0.2.1", basic("alice", fmt.Sprint(guess, i))); err == nil {
				t.Fatalf("round %d: error of the %s guess = nil, want one", i, guess)
			}
		}
		if i > 10 {
			if _, err := w.from("192.0.2.1", basic("alice", "right")); !fault.Is(err, fault.Exhausted) {
				t.Fatalf("round %d: error = %v, want kind %v", i, err, fault.Exhausted)
			}
		}
		w.clock = w.clock.Add(guessInterval)
	}
	if id, err := w.from("198.51.100.1", basic("alice", "right")); err != nil || id.Name != "alice" {
		t.Errorf("from another address: identity = %+v, error = %v, want alice", id, err)
	}
}

// TestEmptyPasswords sends user names without a password, as curl does first for a URL with one. They are not guesses.
func TestEmptyPasswords(t *testing.T) {
	t.Parallel()
	w, app := newHookWorld(t, Options{Guesses: 3}, HookOptions{}, decides)
	for range 100 {
		for _, header := range []string{basic("alice", ""), basic("", "")} {
			if id, err := w.who(header); err != nil || !id.Anonymous() {
				t.Fatalf("without a password: identity = %+v, error = %v, want an anonymous caller", id, err)
			}
		}
	}
	if n := app.questions(); n != 0 {
		t.Errorf("questions to the hook without a password = %d, want 0", n)
	}
	if id, err := w.who(basic("alice", "right")); err != nil || id.Name != "alice" {
		t.Errorf("identity = %+v, error = %v, want alice", id, err)
	}
}

// TestFailuresBeforeASuccess has programs that try several credentials in turn, and machines with a stale password.
// They do not lock out other callers.
func TestFailuresBeforeASuccess(t *testing.T) {
	t.Parallel()
	w, _ := newHookWorld(t, Options{Guesses: 3}, HookOptions{TTL: time.Second}, decides)
	token, stale := w.token("ci", Read), "Bearer "+newToken()
	expired, _, err := w.file.Create(TokenRequest{Name: "old", Expires: w.clock.Add(time.Minute)}, w.clock)
	if err != nil {
		t.Fatal(err)
	}
	w.clock = w.clock.Add(time.Minute)
	for i := range 200 {
		for name, wrong := range map[string]string{"stale": stale, "password": basic("alice", "stale"), "expired": "Bearer " +
			expired} {
			if _, err := w.who(wrong); !fault.Is(err, fault.Unauthenticated) {
				t.Fatalf("round %d: %s: error = %v, want kind %v", i, name, err, fault.Unauthenticated)
			}
		}
		for _, right := range []string{"Bearer " + token, basic("alice", "right")} {
			if _, err := w.who(right); err != nil {
				t.Fatalf("round %d: error with a right credential = %v, want none", i, err)
			}
		}
		w.clock = w.clock.Add(10 * time.Second)
	}
	// Some programs with a wrong credential each, of which each succeeds then with one of its own.
	w.clock = w.clock.Add(rememberWrong)
	for i := range 12 {
		if _, err := w.who("Bearer " + newToken()); !fault.Is(err, fault.Unauthenticated) {
			t.Fatalf("job %d: error = %v, want kind %v", i, err, fault.Unauthenticated)
		}
		if _, err := w.who("Bearer " + w.token(fmt.Sprint("job", i), Read)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestGuessesBetweenSuccesses alternates a right credential with guesses, which are still limited.
func TestGuessesBetweenSuccesses(t *testing.T) {
	t.Parallel()
	w, app := newHookWorld(t, Options{Guesses: 10}, HookOptions{}, decides)
	token, start := w.token("mallory", Read), w.clock
	for guess := 0; w.clock.Sub(start) < rememberWrong; guess++ {
		w.who(basic("alice", fmt.Sprint("guess", guess)))
		if _, err := w.who("Bearer " + token); err != nil {
			t.Fatal(err)
		}
		w.clock = w.clock.Add(100 * time.Millisecond)
	}
	// 10 are free, 10 are forgiven, and then one each minute at most after the first.
	if n := app.questions(); n > 10+10+6+int(rememberWrong/guessInterval) {
		t.Errorf("guesses in %v = %d, want at most %d", rememberWrong, n, 10+10+6+int(rememberWrong/guessInterval))
	}
	// Nor are many of them.
	w.clock, start = w.clock.Add(2*rememberWrong), w.clock.Add(2*rememberWrong)
	tokens := make([]string, 100)
	for i := range tokens {
		tokens[i] = w.token(fmt.Sprint("mallory", i), Read)
	}
	before := app.questions()
	for guess := 0; w.clock.Sub(start) < rememberWrong; guess++ {
		w.who(basic("alice", fmt.Sprint("another guess", guess)))
		w.who("Bearer " + tokens[guess%len(tokens)])
		w.clock = w.clock.Add(100 * time.Millisecond)
	}
	if n := app.questions() - before; n > 10+forgiveAll*10+6+int(rememberWrong/guessInterval) {
		t.Errorf("guesses in %v with many right tokens = %d, want at most %d", rememberWrong, n,
			10+forgiveAll*10+6+int(rememberWrong/guessInterval))
	}
}
