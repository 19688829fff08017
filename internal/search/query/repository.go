package query

import (
	"regexp"
	"strings"

	"github.com/packhorse-git/packhorse/internal/search/schema"
)

// words replaces characters that would end a word of a query.
var words = strings.NewReplacer(" ", `\x20`, `"`, `\x22`, "'", `\x27`, "\t", `\x09`)

// InRepository returns a query for everything in one repository.
func InRepository(path string) string {
	return "repo:^" + words.Replace(regexp.QuoteMeta(schema.Name(path))) + "$"
}
