package config_test

import (
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/config"
)

func TestLFSURL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                "",
		"https://git.example.com":         "https://git.example.com",
		"https://git.example.com:8443/":   "https://git.example.com:8443",
		"http://git.example.com/packs/":   "http://git.example.com/packs",
		"git.example.com":                 "refused",
		"ssh://git.example.com":           "refused",
		"https://":                        "refused",
		"https://:8443":                   "refused",
		"https://git.example.com?":        "refused",
		"https://user@git.example.com":    "refused",
		"https://git.example.com/?a=b":    "refused",
		"https://git.example.com/#a":      "refused",
		"https://git.example.com/%zz":     "refused",
		"https://git.example.com:port/":   "refused",
		"https://git.example.com/ x\r\ny": "refused",
	} {
		c := config.DefaultConfig()
		c.LFS.URL = text
		got := ""
		if err := c.Check(); err != nil && strings.Contains(err.Error(), "lfs.url") {
			got = "refused"
		} else if u := c.LFS.PublicURL(); u != nil {
			got = u.String()
		}
		if got != want {
			t.Errorf("lfs.url = %q is %q, want %q", text, got, want)
		}
	}
}
