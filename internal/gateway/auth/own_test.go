package auth

import (
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// TestOwn: a user's tokens are few, and no credential reaches further than its own grant, or longer than itself.
func TestOwn(t *testing.T) {
	t.Parallel()
	for name, access := range map[string]*Access{"file": AccessInFile(newWorld(t, Options{}).file),
		"log": AccessInLog(&memoryLog{})} {
		s := &Service{Access: access}
		of := func(grant *Grant) *Own {
			own, err := s.Own(Identity{Name: "alice", By: ByOIDC, Grant: grant})
			if err != nil {
				t.Fatal(err)
			}
			return own
		}
		for _, by := range []string{ByHook, ByOrigin} {
			if _, err := s.Own(Identity{Name: "alice", By: by}); !fault.Is(err, fault.Denied) {
				t.Errorf("%s: tokens of a user of %s: %v, want Denied", name, by, err)
			}
		}
		some, err := ParsePatterns([]string{"team/**"})
		if err != nil {
			t.Fatal(err)
		}
		_, wide, err := of(nil).Mint(t.Context(), Write, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		for _, grant := range []*Grant{{Operation: Read}, {Operation: Write, Repositories: some}} {
			if err := of(grant).Revoke(t.Context(), wide.ID); !fault.Is(err, fault.Denied) {
				t.Errorf("%s: revoking a token that permits more: %v, want Denied", name, err)
			}
			if _, _, err := of(grant).Mint(t.Context(), Admin, time.Hour); !fault.Is(err, fault.Denied) {
				t.Errorf("%s: a token that permits more than the credential: %v, want Denied", name, err)
			}
			_, token, err := of(grant).Mint(t.Context(), of(grant).MostScope(), time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			if err := of(grant).Revoke(t.Context(), token.ID); err != nil {
				t.Errorf("%s: revoking a token that permits the same: %v", name, err)
			}
		}
		for range maxOwn - 1 {
			if _, _, err := of(nil).Mint(t.Context(), Read, time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := of(nil).Mint(t.Context(), Read, time.Hour); !fault.Is(err, fault.Precondition) {
			t.Errorf("%s: one token too many: %v, want Precondition", name, err)
		}
		if _, _, err := access.Mint(t.Context(), TokenRequest{Name: "alice"}); err != nil {
			t.Errorf("%s: the administrator creates one more: %v", name, err)
		}
		if err := of(nil).Revoke(t.Context(), wide.ID); err != nil {
			t.Fatal(err)
		}
	}
}
