package native

// earlier is a pack of the Library, with the content of its index.
type earlier struct{}
