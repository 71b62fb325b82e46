"""What the chart allows in the namespace of Spark: resources and verbs, these and no others."""

DRIVER = {
    ("pods", "create"),
    ("pods", "get"),
    ("pods", "list"),
    ("pods", "watch"),
    ("pods", "delete"),
    ("pods", "deletecollection"),
}
SUBMIT = {
    ("pods", "create"),
    ("pods", "get"),
    ("pods", "list"),
    ("pods", "delete"),
    ("pods/log", "get"),
    ("configmaps", "create"),
    ("configmaps", "patch"),
    ("configmaps", "delete"),
    ("services", "create"),
    ("services", "patch"),
    ("services", "delete"),
}
