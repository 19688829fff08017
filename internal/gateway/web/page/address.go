package page

import (
	"net/url"
	"strings"
)

// Path escapes text as components of the path of a URL. Bytes that are not UTF-8 are escaped, too.
func Path(text string) string {
	parts := strings.Split(text, "/")
	for i, part := range parts {
		if parts[i] = url.PathEscape(part); part == "." || part == ".." { // browsers would resolve them
			parts[i] = strings.ReplaceAll(part, ".", "%2E")
		}
	}
	return strings.Join(parts, "/")
}

// Unescape unescapes the path of a URL. Text with an invalid escape stays unchanged.
func Unescape(text string) string {
	if plain, err := url.PathUnescape(text); err == nil {
		return plain
	}
	return text
}

// Address returns the path of a page of a repository, whose path is escaped. kind is "" for that of the repository.
// parts are not escaped. They are joined by slashes, and empty ones at the end are left out.
func Address(repository, kind string, parts ...string) string {
	to := "/" + strings.Trim(repository, "/")
	if kind == "" {
		return to + "/"
	}
	to += "/-/" + kind
	for len(parts) > 0 && parts[len(parts)-1] == "" {
		parts = parts[:len(parts)-1]
	}
	for _, part := range parts {
		to += "/" + Path(strings.Trim(part, "/"))
	}
	return to
}
