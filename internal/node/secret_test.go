package node_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/node"
)

func TestSecretIsHidden(t *testing.T) {
	const value = "Basic dG9wOnNlY3JldA=="
	s := node.NewSecret(value)
	type hidden struct{ auth node.Secret }
	session := node.Session{Authorization: s}
	var out bytes.Buffer
	for _, v := range []any{s, &s, session, &session, hidden{s}, &hidden{s}, []node.Secret{s}, fmt.Errorf("%v", s)} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		slog.New(slog.NewJSONHandler(&out, nil)).Info("m", "v", v)
		slog.New(slog.NewTextHandler(&out, nil)).Info("m", "v", v)
		if err := json.NewEncoder(&out).Encode(v); err != nil {
			t.Fatal(err)
		}
	}
	for _, leak := range []string{value, "dG9wOnNlY3JldA", fmt.Sprintf("%x", value), fmt.Sprintf("%X", value)} {
		if strings.Contains(out.String(), leak) {
			t.Errorf("output has the secret as %q:\n%s", leak, out.String())
		}
	}
	if got := fmt.Sprint(s); got != "[secret]" {
		t.Errorf("Sprint(secret) = %q, want [secret]", got)
	}
	if got := s.Reveal(); got != value {
		t.Errorf("Reveal() = %q, want %q", got, value)
	}
}

func TestSecretZero(t *testing.T) {
	for _, s := range []node.Secret{{}, node.NewSecret("")} {
		if !s.IsZero() || s.Reveal() != "" || s.String() != "" {
			t.Errorf("IsZero, Reveal, String of no credential = %v, %q, %q, want true and empty strings", s.IsZero(),
				s.Reveal(), s.String())
		}
	}
}
