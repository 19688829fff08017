package node

// Secret is a credential, such as the value of an Authorization header. Wherever it is printed, logged or marshaled it
// is "[secret]", also as an unexported field of another type. The zero value means that there is none. Secrets are
// compared by what Reveal returns, not with ==.
type Secret struct {
	value *string // a pointer, because package fmt prints unexported fields without asking their methods
}

// NewSecret returns a secret with the value. The empty string gives the zero value.
func NewSecret(value string) Secret {
	if value == "" {
		return Secret{}
	}
	return Secret{value: &value}
}

// Reveal returns the credential itself. Only code that sends or compares it calls Reveal.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// IsZero reports whether there is no credential.
func (s Secret) IsZero() bool { return s.value == nil }

// String returns "[secret]", or "" for the zero value.
func (s Secret) String() string {
	if s.value == nil {
		return ""
	}
	return "[secret]"
}

// GoString is fmt.GoStringer's.
func (s Secret) GoString() string { return s.String() }

// MarshalText is encoding.TextMarshaler's. Packages encoding/json and log/slog use it too.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
