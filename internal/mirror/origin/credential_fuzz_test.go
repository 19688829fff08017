package origin

import (
	"fmt"
	"strings"
	"testing"
)

// FuzzNetrc checks that an entry survives the text after it, and that an unknown host has no entry.
func FuzzNetrc(f *testing.F) {
	for _, seed := range []string{"", "machine other login a password b", "macdef m\nx\n\nmachine c", "\"", "# c",
		"default",
		"password", "machine \"host", "login"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		user, password, ok := netrcLogin("machine host login u password p\n"+text, "host")
		if !ok || user != "u" || password != "p" {
			t.Errorf("entry before %q = %q %q %v, want u and p", text, user, password, ok)
		}
		const unknown = "unknown.example"
		if user, password, ok = netrcLogin(text, unknown); ok && (user == "" || password == "" ||
			!strings.Contains(text, "default") && !strings.Contains(strings.ToLower(text), unknown)) {
			t.Errorf("entry of %s in %q = %s, want none", unknown, text, fmt.Sprint(user, password))
		}
	})
}
