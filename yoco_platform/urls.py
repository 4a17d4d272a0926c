"""Routes behind the dashboard's middleware: pages, REST, API docs, Django's admin."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth import views as auth_views
from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from yoco_platform import error_views
from yoco_platform.core import apis
from yoco_platform.core.sign_in import guarded

urlpatterns = [
    path("healthz", apis.health, name="health"),
    path("login", guarded(auth_views.LoginView.as_view(template_name="login.html")), name="login"),
    path("logout", auth_views.LogoutView.as_view(), name="logout"),
    path("admin/login/", guarded(admin.site.login)),
    path("admin/", admin.site.urls),
    path("api/schema", SpectacularAPIView.as_view(), name="schema"),
    path("api/docs", SpectacularSwaggerSplitView.as_view(url_name="schema"), name="api-docs"),
    path("api/v1/", include("yoco_platform.core.urls")),
    path("api/v1/", include("nodes.urls")),
    path("api/v1/", include("jobs.urls")),
    path("api/v1/", include("sla.urls")),
    path("", include("frontend.urls")),
]
handler404 = error_views.no_route
handler500 = error_views.failed
