package browse

import (
	"strings"

	"golang.org/x/text/encoding/charmap"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// decode changes the texts of a commit to UTF-8, if its encoding header names one with a byte for each character. Bytes
// in others are shown as invalid UTF-8.
func decode(c *packhorsev1.Commit) {
	if c.GetEncoding() == "" {
		return
	}
	name := plainName(c.GetEncoding())
	for _, known := range charmap.All {
		m, ok := known.(*charmap.Charmap)
		if !ok || plainName(m.String()) != name {
			continue
		}
		texts := []*[]byte{&c.Message}
		for _, s := range []*packhorsev1.Signature{c.GetAuthor(), c.GetCommitter()} {
			if s != nil {
				texts = append(texts, &s.Name, &s.Email)
			}
		}
		for _, text := range texts {
			if plain, err := m.NewDecoder().Bytes(*text); err == nil {
				*text = plain
			}
		}
	}
}

// plainName returns the name of an encoding without the marks in which its spellings differ.
func plainName(name string) string {
	name = strings.NewReplacer(" ", "", "-", "", "_", "").Replace(strings.ToLower(name))
	if name == "latin1" {
		return "iso88591"
	}
	return strings.Replace(name, "cp125", "windows125", 1)
}
